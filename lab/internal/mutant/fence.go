package mutant

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Mutants whose tokens do not grow.

// tokens makes a mutant that replaces the token of each grant.
func tokens(next func(ctx context.Context, s Servers, key string) int64) func(Servers, *memory) hooks {
	return func(s Servers, m *memory) hooks {
		token := func(ctx context.Context, r driver.Ref, st *driver.State) {
			if st.Phase != driver.Held {
				return
			}
			c := m.of(r.ID, nil)
			if c.token == 0 {
				fresh := next(ctx, s, m.prefix+r.Key)
				c = m.of(r.ID, func(c *remembered) { c.token = fresh })
			}
			st.Token = c.token
		}
		return hooks{
			acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				st, err := d.Acquire(ctx, r)
				token(ctx, r.Ref, &st)
				return st, err
			},
			renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
				states, err := d.Renew(ctx, refs)
				for i := range states {
					token(ctx, refs[i], &states[i])
				}
				return states, err
			},
			hear: deaf,
		}
	}
}

// counter is INCR of a key that a restart or a failover may lose.
func counter(ctx context.Context, s Servers, key string) int64 {
	n, _ := s.Redis.Incr(ctx, "fence:"+key).Result()
	return n
}

// perProcess counts in the process.
func perProcess() func(context.Context, Servers, string) int64 {
	var n atomic.Int64
	return func(context.Context, Servers, string) int64 { return n.Add(1) }
}

// seconds is the time, in steps that two holders can share.
func seconds(context.Context, Servers, string) int64 { return time.Now().Unix() }

// skewed is the time of a host whose clock may differ from those of others.
func skewed(_ context.Context, s Servers, _ string) int64 {
	return time.Now().Add(-time.Duration(s.Worker) * time.Minute).UnixMicro()
}
