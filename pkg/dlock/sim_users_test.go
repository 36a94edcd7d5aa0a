package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A process is one Client of a world, and the next when that was closed.
type process struct {
	world *world
	name  string
	cfg   dlock.Config

	mu     sync.Mutex
	client *dlock.Client
	lives  int
}

func (p *process) get() *dlock.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// restart opens another Client, and closes the old one under its users.
func (p *process) restart() error {
	next, err := p.world.open(fmt.Sprint(p.name, p.lives), p.cfg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := p.client
	p.client = next
	p.lives++
	p.mu.Unlock()
	if old == nil {
		return nil
	}
	return old.Close()
}

// A user calls the Client of its process, one thing after another.
type user struct {
	world   *world
	process *process
	name    string
	r       *rand.Rand
	steps   int
}

// A wish is one call for a lock.
type wish struct {
	key, purpose string
	mode         driver.Mode
	limit        int
	ttl          time.Duration
	keeps        bool // nothing but an unlock is to end it
	bounded      bool // by WithWait
	opts         []dlock.LockOption
	asked        time.Duration // when
}

func (u *user) chance(percent int) bool { return u.r.IntN(100) < percent }

func (u *user) upTo(d time.Duration) time.Duration { return time.Duration(u.r.Int64N(int64(d))) }

func (u *user) wish() wish {
	w := wish{key: "plain", purpose: "of nobody", ttl: time.Duration(1+u.r.IntN(10)) * time.Second, keeps: true, asked: u.world.now()}
	if u.chance(40) {
		w.key = "mixed"
		switch u.r.IntN(4) {
		case 0, 1:
			w.mode = driver.Shared
			w.opts = append(w.opts, dlock.WithShared())
		case 2:
			w.mode, w.limit = driver.Permit, 1+u.r.IntN(3)
			w.opts = append(w.opts, dlock.WithPermits(w.limit))
		}
	}
	w.opts = append(w.opts, dlock.WithTTL(w.ttl))
	if u.process.cfg.LocalBatch == 0 { // else those who differ in it share nothing
		w.purpose = fmt.Sprintf("%s/%d", u.name, u.steps)
		w.opts = append(w.opts, dlock.WithInfo(dlock.Info{Purpose: w.purpose}))
	}
	if u.chance(10) {
		w.keeps = false
		w.opts = append(w.opts, dlock.WithoutRenewal())
	} else if u.chance(10) {
		w.opts = append(w.opts, dlock.WithMinHold(u.upTo(3*time.Second)))
	}
	if u.chance(10) {
		w.keeps = false
		w.opts = append(w.opts, dlock.WithMaxHold(3*time.Second+u.upTo(5*time.Second)))
	}
	if u.chance(30) {
		w.bounded = true
		w.opts = append(w.opts, dlock.WithWait(u.upTo(8*time.Second)))
	}
	return w
}

// patience is a context as users have them.
func (u *user) patience() (context.Context, context.CancelFunc) {
	switch u.r.IntN(3) {
	case 0:
		return context.WithTimeout(ctx, u.upTo(6*time.Second))
	case 1:
		c, cancel := context.WithCancel(ctx)
		stop := time.AfterFunc(u.upTo(6*time.Second), cancel)
		return c, func() { stop.Stop(); cancel() }
	}
	return context.WithCancel(ctx)
}

// run makes some calls.
func (u *user) run(calls int) {
	for u.steps = range calls {
		u.pause(u.upTo(2 * time.Second))
		c := u.process.get()
		switch n := u.r.IntN(20); {
		case n < 7:
			u.guard(c, n == 0)
		case n < 12:
			u.keyed(c, n == 7)
		case n < 18:
			u.do(c)
		case n == 18 && u.chance(30):
			_ = u.process.restart() // Close tells what it could not clean up
		case n == 19:
			u.evict()
		}
	}
}

func (u *user) pause(d time.Duration) { elapse(d + time.Duration(1+u.r.IntN(1000))) }

func (u *user) hold(held context.Context, w wish, token int64, inside *hold) *hold {
	h := &hold{
		user: u.name, client: fmt.Sprint(u.process.name, u.process.lives), key: w.key, mode: w.mode, limit: w.limit,
		token: token, ctx: held, inside: inside,
	}
	u.world.enter(h)
	return h
}

// guard acquires, works and unlocks.
func (u *user) guard(c *dlock.Client, try bool) {
	w := u.wish()
	patient, cancel := u.patience()
	defer cancel()
	seek := c.Acquire
	if try {
		seek = c.TryAcquire
	}
	g, err := seek(patient, w.key, w.opts...)
	if err != nil {
		u.world.refused(u.name, w, err, patient)
		return
	}
	h := u.hold(g.Context(), w, g.Token(), nil)
	u.work(c, w, h, g)
	u.giveBack(w, h, func() error { return g.Unlock(patient) })
}

// keyed locks and unlocks by key, and inside once more.
func (u *user) keyed(c *dlock.Client, try bool) {
	w := u.wish()
	patient, cancel := u.patience()
	defer cancel()
	owner := dlock.OwnerContext(patient)
	err := c.Lock(owner, w.key, w.opts...)
	if try && err == nil {
		_ = c.Unlock(ctx, w.key)
		return
	}
	if err != nil {
		u.world.refused(u.name, w, err, patient)
		if errors.Is(err, dlock.ErrOwnershipLost) {
			_ = c.Unlock(ctx, w.key) // which somebody still owes
		}
		return
	}
	g, ok := c.Held(w.key)
	if !ok {
		_ = c.Unlock(ctx, w.key)
		return
	}
	h := u.hold(g.Context(), w, g.Token(), nil)
	if u.process.cfg.EnableReentrant && u.chance(50) {
		if again, err := c.TryLock(owner, w.key); again && err == nil {
			u.pause(u.upTo(time.Second))
			_ = c.Unlock(ctx, w.key)
		}
	}
	u.work(c, w, h, g)
	u.giveBack(w, h, func() error { return c.Unlock(patient, w.key) })
}

// do runs a function under a lock, and inside another, which may ask for more.
func (u *user) do(c *dlock.Client) {
	w := u.wish()
	patient, cancel := u.patience()
	defer cancel()
	ran := false
	err := c.Do(patient, w.key, func(inner context.Context) error {
		ran = true
		g, ok := dlock.FromContext(inner)
		if !ok {
			return errors.New("no Guard in the context")
		}
		h := u.hold(inner, w, g.Token(), nil)
		if u.process.cfg.EnableReentrant && u.chance(50) {
			u.doInside(inner, c, w, h, g)
		}
		u.work(c, w, h, g)
		u.world.leave(h)
		return nil
	}, w.opts...)
	if !ran {
		u.world.refused(u.name, w, err, patient)
	}
}

func (u *user) doInside(inner context.Context, c *dlock.Client, outer wish, h *hold, g *dlock.Guard) {
	w := wish{key: outer.key}
	_ = c.Do(inner, w.key, func(held context.Context) error {
		within := u.hold(held, w, g.Token(), h)
		u.stay(held, u.upTo(time.Second))
		u.world.leave(within)
		return nil
	})
}

// stay waits until a time has passed or the lock is lost.
func (u *user) stay(held context.Context, d time.Duration) {
	select {
	case <-time.After(d + time.Duration(1+u.r.IntN(1000))):
	case <-held.Done():
	}
}

// work is what a holder does: time passes, and it may extend.
func (u *user) work(_ *dlock.Client, w wish, h *hold, g *dlock.Guard) {
	for range 1 + u.r.IntN(2) {
		u.stay(h.ctx, u.upTo(w.ttl))
		if u.chance(25) {
			limit, cancel := context.WithTimeout(ctx, time.Second)
			_ = g.Extend(limit, time.Duration(1+u.r.IntN(60))*time.Second)
			cancel()
		}
	}
	if w.keeps && h.ctx.Err() == nil {
		u.stay(h.ctx, u.upTo(time.Second))
	}
}

// giveBack unlocks, and checks that nothing was lost that could not be.
func (u *user) giveBack(w wish, h *hold, unlock func() error) {
	world := u.world
	world.mu.Lock()
	cause := context.Cause(h.ctx)
	if world.calm && w.keeps && !world.evicted[h.token] && errors.Is(cause, dlock.ErrOwnershipLost) {
		world.bug("false loss", "%s lost token %d of %s, and nothing fails: %v", u.name, h.token, w.key, cause)
	}
	world.mu.Unlock()
	world.leave(h)
	err := unlock()
	world.mu.Lock()
	defer world.mu.Unlock()
	world.tell("%s has unlocked %s, token %d: %v", u.name, w.key, h.token, err)
	if h.ctx.Err() == nil {
		world.bug("context", "%s has unlocked %s, token %d, and its context lives", u.name, w.key, h.token)
	}
}

// evict takes a lock from whoever has it.
func (u *user) evict() {
	w := u.world
	d, err := w.store.Open(driver.Options{})
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	admin := d.(driver.Admin)
	key := "plain"
	if u.chance(30) {
		key = "mixed"
	}
	claims, _ := admin.Inspect(ctx, key)
	if len(claims) == 0 || claims[0].Phase != driver.Held {
		return
	}
	w.mu.Lock()
	for token := claims[0].Token; token <= max(claims[0].Token, claims[0].LastToken); token++ {
		w.evicted[token] = true
	}
	w.tell("%s evicts token %d of %s", u.name, claims[0].Token, key)
	w.mu.Unlock()
	_, _ = admin.Evict(ctx, key, claims[0].ID, claims[0].Token)
}
