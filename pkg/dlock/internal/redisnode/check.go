package redisnode

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Info is the reply of INFO as fields and values.
type Info map[string]string

// ParseInfo reads the reply of INFO.
func ParseInfo(raw string) Info {
	info := Info{}
	for line := range strings.Lines(raw) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// Before reports whether the server is older than a version.
func (i Info) Before(major, minor int) bool {
	a, rest, _ := strings.Cut(i["redis_version"], ".")
	m, _ := strconv.Atoi(a)
	n, _ := strconv.Atoi(strings.SplitN(rest, ".", 2)[0])
	return m < major || (m == major && n < minor)
}

// Version reports whether the server is too old.
func Version(info Info) driver.Finding {
	f := driver.Finding{Name: "version", Detail: "Redis " + info["redis_version"]}
	if info.Before(6, 2) {
		f.Level, f.Fix = driver.Unsafe, "use Redis 6.2 or newer: this one is neither tested nor maintained"
	}
	return f
}

// Eviction reports whether held locks may be evicted.
func Eviction(info Info) driver.Finding {
	policy, limit := info["maxmemory_policy"], info["maxmemory"]
	f := driver.Finding{Name: "eviction-policy", Detail: "maxmemory-policy " + policy}
	if policy == "noeviction" {
		return f
	}
	f.Level, f.Fix = driver.Unsafe, "set maxmemory-policy noeviction: locks have an expiry, so every other policy may evict them while they are held"
	if limit == "0" {
		f.Level, f.Detail = driver.Warning, f.Detail+", without a limit of memory"
	}
	return f
}

// Persistence reports what a restart loses.
func Persistence(info Info) driver.Finding {
	f := driver.Finding{Name: "persistence", Detail: "append-only file on"}
	if info["aof_enabled"] != "1" {
		f.Level, f.Detail = driver.Warning, "append-only file off"
		f.Fix = "a server that restarts forgets its locks: set appendonly yes and appendfsync always, or keep it down for longer than the longest TTL"
	}
	return f
}

// slowTrip is the round trip from which the usual TTL of a few seconds is less than ten round
// trips.
const slowTrip = 200 * time.Millisecond

// Ask reads what a server says of itself. It may take as long as the limit.
func Ask(ctx context.Context, node redis.Cmdable, limit time.Duration) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := node.Info(ctx).Result()
	return ParseInfo(raw), err
}

// Clock returns how far the clock of a server is ahead of the local one, and how exactly that is known. It may take as long as the limit.
func Clock(ctx context.Context, node redis.Cmdable, limit time.Duration) (offset, between time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before := time.Now()
	at, err := node.Time(ctx).Result()
	between = time.Since(before)
	return at.Sub(before.Add(between / 2)), between, err
}

func ping(ctx context.Context, node redis.Cmdable, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	err := node.Ping(ctx).Err()
	return time.Since(start), err
}

// RoundTrip measures the round trip to a server. Each may take as long as the limit.
func RoundTrip(ctx context.Context, node redis.Cmdable, limit time.Duration) (driver.Finding, error) {
	var trips []time.Duration
	for range 5 {
		took, err := ping(ctx, node, limit)
		if err != nil {
			return driver.Finding{}, err
		}
		trips = append(trips, took)
	}
	slices.Sort(trips)
	median := trips[len(trips)/2]
	f := driver.Finding{Name: "round-trip", Detail: "median " + median.Round(time.Microsecond).String()}
	f.Fix = "choose a TTL of at least " + (10 * median).Round(time.Millisecond).String()
	if median > slowTrip {
		f.Level = driver.Warning
	}
	return f, nil
}
