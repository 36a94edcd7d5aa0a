package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Check examines every master for settings that make locks unsafe. It needs INFO and PING. Without
// permission for TIME and, on a cluster, CLUSTER, it reports less.
func (d *redisDriver) Check(ctx context.Context) ([]driver.Finding, error) {
	return await(ctx, d, func() ([]driver.Finding, error) { return d.check(ctx) })
}

func (d *redisDriver) check(ctx context.Context) ([]driver.Finding, error) {
	nodes, err := d.masters(ctx)
	if err != nil {
		return nil, redisnode.Classify(err)
	}
	var all []driver.Finding
	for _, node := range nodes {
		findings, err := d.checkNode(ctx, node)
		if err != nil {
			return nil, redisnode.Classify(err)
		}
		if one, ok := node.(*redis.Client); ok && len(nodes) > 1 {
			for i := range findings {
				findings[i].Detail = one.Options().Addr + ": " + findings[i].Detail
			}
		}
		all = append(all, findings...)
	}
	return append(all, d.pool()), nil
}

// minPoolSize is how many connections to one server are used at once: the round trips in flight, a
// renewal, and a call of an operator.
const minPoolSize = maxInFlight + 2

// pool reports whether calls had to wait for a connection, or may have to: a renewal that waits
// behind blocking commands of other code is too late.
func (d *redisDriver) pool() driver.Finding {
	var size int
	var stats *redis.PoolStats
	if d.cluster != nil {
		size, stats = d.cluster.Options().PoolSize, d.cluster.PoolStats()
	} else if c, ok := d.client.(*redis.Client); ok {
		size, stats = c.Options().PoolSize, c.PoolStats()
	}
	return poolFinding(size, stats)
}

func poolFinding(size int, stats *redis.PoolStats) driver.Finding {
	f := driver.Finding{Name: "pool"}
	f.Detail = fmt.Sprintf("%d connections for each server; %d calls have waited for one, and %d of them timed out", size, stats.WaitCount, stats.Timeouts)
	if size < minPoolSize || stats.WaitCount > 0 || stats.Timeouts > 0 {
		f.Level = driver.Warning
		f.Fix = fmt.Sprintf("give locks a client of their own, with a PoolSize of at least %d: behind other commands a renewal may come too late", minPoolSize)
	}
	return f
}

func (d *redisDriver) checkNode(ctx context.Context, node redis.Cmdable) ([]driver.Finding, error) {
	info, err := redisnode.Ask(ctx, node, tripTimeout)
	if err != nil {
		return nil, err
	}
	trip, err := redisnode.RoundTrip(ctx, node, tripTimeout)
	if err != nil {
		return nil, err
	}
	all := []driver.Finding{d.version(info), redisnode.Eviction(info), redisnode.Persistence(info), d.replication(info), clock(ctx, node), trip}
	if info["cluster_enabled"] == "1" {
		all = append(all, allSlots(ctx, node))
	}
	return all, nil
}

// maxClockOffset is the clock difference from which clock reports a warning.
const maxClockOffset = time.Second

// clock compares the server's clock with the local one. The difference does not change how long
// locks last, but tokens are taken from the server's clock if their counter is lost.
func clock(ctx context.Context, node redis.Cmdable) driver.Finding {
	offset, between, err := redisnode.Clock(ctx, node, tripTimeout)
	if err != nil {
		return driver.Finding{Name: "clock", Detail: "not known: " + err.Error()}
	}
	return clockFinding(offset.Abs(), between)
}

func clockFinding(offset, between time.Duration) driver.Finding {
	f := driver.Finding{Name: "clock"}
	f.Detail = fmt.Sprintf("differs from this machine's by %v, give or take %v", offset.Round(time.Millisecond), between.Round(time.Millisecond))
	if offset > maxClockOffset+between {
		f.Level, f.Fix = driver.Warning, "set the clocks by NTP: a server that has lost its data, or takes over from one, takes its tokens from its clock"
	}
	return f
}

// allSlots reports whether the cluster, as this node sees it, serves all slots.
func allSlots(ctx context.Context, node redis.Cmdable) driver.Finding {
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	f := driver.Finding{Name: "slots"}
	raw, err := node.ClusterInfo(ctx).Result()
	if err != nil {
		f.Detail = "not known: " + err.Error()
		return f
	}
	info := redisnode.ParseInfo(raw)
	served, _ := strconv.Atoi(info["cluster_slots_ok"])
	f.Detail = fmt.Sprintf("the cluster is in state %s, and %d of %d slots are served", info["cluster_state"], served, slots)
	if info["cluster_state"] != "ok" || served < slots {
		f.Level, f.Fix = driver.Unsafe, "give every slot a master that runs: locks on the others are neither granted nor renewed"
	}
	return f
}

func (d *redisDriver) version(info redisnode.Info) driver.Finding {
	f := redisnode.Version(info)
	if f.Level == driver.OK && d.cluster != nil && info.Before(7, 0) {
		f.Level, f.Fix = driver.Warning, "use Redis 7 or newer on a cluster: older versions do not notify a waiter that gets the key, which then finds out within a second"
	}
	return f
}

func (d *redisDriver) replication(info redisnode.Info) driver.Finding {
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	silent := silentReplicas(info, replicas)
	f := driver.Finding{Name: "replication", Detail: fmt.Sprintf("%s with %d replicas", info["role"], replicas)}
	if silent > 0 {
		f.Detail += fmt.Sprintf(", %d of which have not answered for %d s or more", silent, silentAfter)
	}
	switch {
	case info["role"] != "master":
		f.Level, f.Fix = driver.Unsafe, "connect to the master: a replica refuses to write"
	case replicas < d.settings.replicas:
		f.Level, f.Fix = driver.Unsafe, fmt.Sprintf("WithMinReplicas needs %d: no lock is granted before they are connected", d.settings.replicas)
	case replicas-silent < d.settings.replicas:
		f.Level, f.Fix = driver.Unsafe, fmt.Sprintf("WithMinReplicas needs %d that answer: no lock is granted before that", d.settings.replicas)
	case silent > 0:
		f.Level, f.Fix = driver.Warning, "a failover to a replica that has not answered loses locks: find out why it does not"
	case replicas > 0 && d.settings.replicas == 0:
		f.Level, f.Fix = driver.Warning, "a failover may give a lock to two holders: use WithMinReplicas to narrow the window, and fencing tokens to be safe"
	}
	return f
}

// silentAfter is how many seconds a replica may go without an answer, which it gives every second.
const silentAfter = 3

// silentReplicas counts the replicas that are connected and do not answer.
func silentReplicas(info redisnode.Info, replicas int) (n int) {
	for i := range replicas {
		for field := range strings.SplitSeq(info["slave"+strconv.Itoa(i)], ",") {
			seconds, ok := strings.CutPrefix(field, "lag=")
			if lag, err := strconv.Atoi(seconds); ok && err == nil && lag >= silentAfter {
				n++
			}
		}
	}
	return n
}

// warnOnce runs Check in the background when the first lock is taken, and logs unsafe settings,
// because some of them, such as a wrong eviction policy, lose locks without any other sign.
func (d *redisDriver) warnOnce() {
	d.warned.Do(func() {
		d.work.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, 2*time.Second)
			defer cancel()
			findings, err := d.Check(ctx)
			for _, f := range findings {
				if err == nil && f.Level == driver.Unsafe {
					d.log.Warn("redis is not safe for locks", "finding", f.Name, "detail", f.Detail, "fix", f.Fix)
				}
			}
		})
	})
}
