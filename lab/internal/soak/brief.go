package soak

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A briefUser locks briefly, one thing after another.
type briefUser struct {
	instance *instance
	r        *rand.Rand
}

// run makes one call, and undoes it.
func (k *briefUser) run(ctx context.Context) {
	pause(ctx, time.Duration(k.r.Int64N(int64(400*time.Millisecond))))
	c, key := k.instance.get(), k.instance.key(k.r, false)
	patient, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	switch k.r.IntN(6) {
	case 0:
		short, end := context.WithTimeout(ctx, time.Duration(k.r.Int64N(int64(3*time.Millisecond))))
		defer end()
		k.guard(short, "acquire with 3 ms", c.Acquire, key)
	case 1:
		k.guard(patient, "acquire", c.Acquire, key)
	case 2:
		k.guard(patient, "try acquire", c.TryAcquire, key)
	case 3:
		err := c.Lock(patient, key)
		k.keyed(patient, "lock", c, key, true, err)
	case 4:
		held, err := c.TryLock(patient, key)
		k.keyed(patient, "try lock", c, key, held, err)
	case 5:
		k.instance.child.counts.add("do", c.Do(patient, key, func(ctx context.Context) error {
			k.work(ctx)
			return nil
		}))
	}
}

type seek func(context.Context, string, ...dlock.LockOption) (*dlock.Guard, error)

func (k *briefUser) guard(ctx context.Context, verb string, do seek, key string) {
	counts := k.instance.child.counts
	g, err := do(ctx, key)
	counts.add(verb, err)
	if err != nil {
		return
	}
	k.work(g.Context())
	if k.r.IntN(8) == 0 {
		counts.add("extend", g.Extend(ctx, 2*ttl))
	}
	counts.add("unlock", g.Unlock(ctx))
}

func (k *briefUser) keyed(ctx context.Context, verb string, c *dlock.Client, key string, held bool, err error) {
	counts := k.instance.child.counts
	if err == nil && !held {
		err = dlock.ErrLockHeldByOther
	}
	counts.add(verb, err)
	if err == nil {
		k.work(ctx)
		counts.add("unlock by key", c.Unlock(ctx, key))
	}
}

func (k *briefUser) work(ctx context.Context) {
	pause(ctx, time.Duration(k.r.Int64N(int64(20*time.Millisecond))))
}
