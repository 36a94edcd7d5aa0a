package dlock_test

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The network of the simulator. Every message has a fate of its own, drawn from the seed
// and from which message it is, not from when it is drawn: the order in which goroutines
// run changes nothing.

// A fate is what becomes of a message and its answer.
type fate struct {
	there, back           time.Duration
	lostThere, lostBack   bool
	again                 time.Duration // after which it arrives once more; 0: never
	lostPush, repeatsPush bool
}

// weather is how bad the network of a world is.
type weather struct {
	loss, repeats, slow float64       // how many messages of a hundred
	delay, late         time.Duration // the longest of most, and of the slow ones
}

func (w *world) fate(link, what string, n int) fate {
	r := w.draw(link, what, n)
	delay := func() time.Duration {
		if r.Float64()*100 < w.weather.slow {
			return time.Duration(r.Int64N(int64(w.weather.late)))
		}
		return time.Millisecond + time.Duration(r.Int64N(int64(w.weather.delay)))
	}
	f := fate{there: delay(), back: delay()}
	f.lostThere = r.Float64()*100 < w.weather.loss
	f.lostBack = r.Float64()*100 < w.weather.loss
	f.lostPush = r.Float64()*100 < w.weather.loss
	if r.Float64()*100 < w.weather.repeats {
		f.again, f.repeatsPush = delay(), true
	}
	if w.healed.Load() {
		return fate{there: f.there % (5 * time.Millisecond), back: f.back % (5 * time.Millisecond)}
	}
	if w.cutOff(link) {
		f.lostThere, f.lostPush = true, true
	}
	return f
}

// A link is how one Client reaches the store.
type link struct {
	driver.Driver
	world  *world
	name   string
	events chan driver.Event
	done   chan struct{}
	pump   sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
}

// Open makes links: a world is a backend.
func (w *world) Open(o driver.Options) (driver.Driver, error) {
	d, err := w.store.Open(o)
	if err != nil {
		return nil, err
	}
	l := &link{
		Driver: d, world: w, name: w.nextLink(), counts: map[string]int{},
		events: make(chan driver.Event, 64), done: make(chan struct{}),
	}
	l.pump.Go(l.push)
	return l, nil
}

func (l *link) Caps() driver.Caps {
	c := l.Driver.Caps()
	c.Remote = !l.world.local
	return c
}

func (l *link) Events() <-chan driver.Event { return l.events }

func (l *link) Close() error {
	close(l.done)
	_ = l.Driver.Close()
	l.pump.Wait()
	close(l.events)
	return nil
}

func (l *link) next(what string) fate {
	l.mu.Lock()
	l.counts[what]++
	n := l.counts[what]
	l.mu.Unlock()
	return l.world.fate(l.name, what, n)
}

// push carries events, each at its own pace.
func (l *link) push() {
	for ev := range l.Driver.Events() {
		l.world.saw(ev.Key, ev.ID, ev.State)
		f := l.next("push " + ev.Key)
		if f.lostPush {
			continue
		}
		l.pump.Go(func() { l.deliver(ev, f.there) })
		if f.repeatsPush {
			l.pump.Go(func() { l.deliver(ev, f.there+f.again) })
		}
	}
}

func (l *link) deliver(ev driver.Event, after time.Duration) {
	select {
	case <-time.After(after):
	case <-l.done:
		return
	}
	select {
	case l.events <- ev:
		l.world.note("%s is told %v", l.name, ev)
	case <-l.done:
	}
}

func (l *link) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	return carry(ctx, l, "acquire "+r.Key, func() (driver.State, error) {
		st, err := l.Driver.Acquire(context.Background(), r)
		l.world.saw(r.Key, r.ID, st)
		st.Until = time.Time{} // which the store reckons from when it was asked, not from when that was sent
		return st, err
	})
}

func (l *link) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	refs = append([]driver.Ref(nil), refs...)
	return carry(ctx, l, "renew "+refs[0].Key, func() ([]driver.State, error) {
		states, err := l.Driver.Renew(context.Background(), refs)
		for i := range states {
			l.world.saw(refs[i].Key, refs[i].ID, states[i])
			states[i].Until = time.Time{}
		}
		return states, err
	})
}

func (l *link) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	l.world.releases(l.name, r)
	return carry(ctx, l, "release "+r.Key, func() (driver.State, error) {
		st, err := l.Driver.Release(context.Background(), r)
		l.world.look(r.Key)
		return st, err
	})
}

// carry takes a call to the store and its answer back, if they arrive.
func carry[T any](ctx context.Context, l *link, what string, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	f, got := l.next(what), make(chan answer, 1)
	l.world.note("%s %s is sent", l.name, what)
	l.world.mail.Go(func() {
		if f.lostThere {
			return
		}
		elapse(f.there)
		var a answer
		a.value, a.err = call()
		if f.again > 0 {
			l.world.mail.Go(func() { elapse(f.again); _, _ = call() })
		}
		if f.lostBack {
			return
		}
		elapse(f.back)
		got <- a
	})
	select {
	case a := <-got:
		l.world.note("%s %s: %v %v", l.name, what, a.value, a.err)
		return a.value, a.err
	case <-ctx.Done():
		l.world.note("%s %s: given up", l.name, what)
		var none T
		return none, ctx.Err()
	}
}

func (l *link) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	return carry(ctx, l, "inspect "+key, func() ([]driver.Claim, error) {
		return l.Driver.(driver.Admin).Inspect(context.Background(), key)
	})
}

func (l *link) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	return l.Driver.(driver.Admin).List(ctx, prefix, cursor, limit)
}

func (l *link) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	return l.Driver.(driver.Admin).Evict(ctx, key, id, token)
}
