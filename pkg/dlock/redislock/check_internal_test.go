package redislock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Replicas that are missing or silent are reported, above all if grants need them.
func TestFindingsOfReplicas(t *testing.T) {
	for _, tc := range []struct {
		name  string
		needs int
		info  string
		level driver.Level
		says  string
	}{
		{"alone", 0, "role:master", driver.OK, "master with 0 replicas"},
		{"a replica", 0, "role:slave", driver.Unsafe, "slave with 0 replicas"},
		{"too few", 2, "role:master\nconnected_slaves:1\nslave0:ip=a,lag=0", driver.Unsafe, "needs 2: "},
		{"enough", 1, "role:master\nconnected_slaves:1\nslave0:ip=a,lag=2", driver.OK, "master with 1 replicas"},
		{"too few that answer", 2, "role:master\nconnected_slaves:2\nslave0:ip=a,lag=3\nslave1:ip=b,lag=1", driver.Unsafe, "needs 2 that answer"},
		{"enough that answer", 1, "role:master\nconnected_slaves:2\nslave0:ip=a,lag=1\nslave1:ip=b,lag=900", driver.Warning, ", 1 of which have not answered for 3 s or more"},
		{"none needed", 0, "role:master\nconnected_slaves:1\nslave0:ip=a,lag=0", driver.Warning, "WithMinReplicas to narrow"},
		{"none needed, and silent", 0, "role:master\nconnected_slaves:1\nslave0:ip=a,lag=5", driver.Warning, "has not answered loses locks"},
		{"without a lag", 1, "role:master\nconnected_slaves:1\nslave0:ip=a,lag=x", driver.OK, "master with 1 replicas"},
	} {
		d := &redisDriver{settings: settings{replicas: tc.needs}}
		f := d.replication(redisnode.ParseInfo(strings.ReplaceAll(tc.info, "\n", "\r\n")))
		if f.Level != tc.level || !strings.Contains(f.Detail+" "+f.Fix, tc.says) || (f.Fix == "") != (f.Level == driver.OK) {
			t.Errorf("%s: %+v", tc.name, f)
		}
		if silent := strings.Contains(f.Detail, "of which"); silent != strings.Contains(tc.name, "answer") && silent != strings.Contains(tc.name, "silent") {
			t.Errorf("%s: %q", tc.name, f.Detail)
		}
	}
}

// A pool is reported if it has less than eight connections, or if a call has waited.
func TestFindingsOfThePool(t *testing.T) {
	for _, tc := range []struct {
		size  int
		stats redis.PoolStats
		level driver.Level
	}{
		{8, redis.PoolStats{}, driver.OK},
		{7, redis.PoolStats{}, driver.Warning},
		{8, redis.PoolStats{WaitCount: 1}, driver.Warning},
		{8, redis.PoolStats{Timeouts: 1}, driver.Warning},
	} {
		f := poolFinding(tc.size, &tc.stats)
		if f.Level != tc.level || (f.Fix == "") != (f.Level == driver.OK) || !strings.Contains(f.Detail, fmt.Sprintf("%d connections", tc.size)) {
			t.Errorf("%+v: %+v", tc, f)
		}
	}
	if f := clockFinding(time.Second+time.Millisecond, time.Millisecond); f.Level != driver.OK {
		t.Errorf("at the limit: %+v", f)
	}
	if f := clockFinding(time.Second+2*time.Millisecond, time.Millisecond); f.Level != driver.Warning {
		t.Errorf("beyond the limit: %+v", f)
	}
}
