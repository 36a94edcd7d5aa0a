package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Fate is what becomes of a message and its answer.
type Fate struct {
	There, Back         time.Duration
	LostThere, LostBack bool
	Again               time.Duration // after which it arrives once more; 0: never
	LostPush, Repeats   bool          // of a push
	Tie                 time.Duration // keeps what happens at one instant apart
}

// conditions say how bad the network of a run is.
type conditions struct {
	loss, repeats, slow float64       // how many messages of a hundred
	delay, late         time.Duration // the longest of most, and of the slow ones
	repeatLate          bool          // repeated messages are slow
}

// Fate is what becomes of the nth message of a kind on a link.
func (s *Simulation) Fate(link, what string, n int) Fate {
	r := s.Draw(link, what, n)
	delay := func() time.Duration {
		if r.Float64()*100 < s.network.slow {
			return time.Duration(r.Int64N(int64(s.network.late)))
		}
		return time.Millisecond + time.Duration(r.Int64N(int64(s.network.delay)))
	}
	f := Fate{There: delay(), Back: delay()}
	f.LostThere = r.Float64()*100 < s.network.loss
	f.LostBack = r.Float64()*100 < s.network.loss
	f.LostPush = r.Float64()*100 < s.network.loss
	if r.Float64()*100 < s.network.repeats {
		f.Again, f.Repeats = delay(), true
		if s.network.repeatLate {
			f.Again = time.Duration(r.Int64N(int64(s.network.late)))
		}
	}
	f.Tie = time.Duration(1 + r.IntN(1000))
	if s.healed.Load() {
		return Fate{Tie: f.Tie, There: f.There % (5 * time.Millisecond), Back: f.Back % (5 * time.Millisecond)}
	}
	if s.Cut(link) {
		f.LostThere, f.LostPush = true, true
	}
	return f
}

// Cut reports whether a link carries nothing now.
func (s *Simulation) Cut(link string) bool {
	now := s.Now()
	for _, c := range s.cuts {
		if c.link == link && c.from <= now && now < c.to && !s.healed.Load() {
			return true
		}
	}
	return false
}

// NextLink names the next link.
func (s *Simulation) NextLink() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links++
	return fmt.Sprintf("link %d", s.links)
}

// Go runs f, and lets the run wait for its end.
func (s *Simulation) Go(f func()) { s.sent.Go(f) }

// Remote is a store's backend behind the network of a run.
func (s *Simulation) Remote(b driver.Opener) driver.Opener { return remote{s, b} }

type remote struct {
	sim *Simulation
	driver.Opener
}

func (r remote) Open(o driver.Options) (driver.Driver, error) {
	d, err := r.Opener.Open(o)
	if err != nil {
		return nil, err
	}
	l := &link{
		Driver: d, reopen: func() (driver.Driver, error) { return r.Opener.Open(o) }, sim: r.sim, name: r.sim.NextLink(), counts: map[string]int{},
		events: make(chan driver.Event, 64), done: make(chan struct{}),
	}
	shown, err := expose(d, l)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	l.pushes.Go(l.push)
	return shown, nil
}

// A link is how one Client reaches the store.
type link struct {
	driver.Driver
	reopen func() (driver.Driver, error) // for what arrives after Close
	sim    *Simulation
	name   string
	events chan driver.Event
	done   chan struct{}
	pushes sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
	busy   sync.WaitGroup // calls at the store
	closed bool
}

// use gives the store a call, through another driver if its own is closed.
func (l *link) use(call func(driver.Driver)) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.busy.Add(1)
	}
	l.mu.Unlock()
	if !closed {
		defer l.busy.Done()
		call(l.Driver)
		return
	}
	d, err := l.reopen()
	if err != nil {
		panic(err) // it could be opened before
	}
	defer d.Close()
	call(d)
}

func (l *link) Caps() driver.Caps {
	c := l.Driver.Caps()
	c.Remote = !l.sim.local
	return c
}

func (l *link) Events() <-chan driver.Event { return l.events }

func (l *link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.done)
	l.busy.Wait()
	_ = l.Driver.Close()
	l.pushes.Wait()
	close(l.events)
	return nil
}

func (l *link) next(what string) Fate {
	l.mu.Lock()
	l.counts[what]++
	n := l.counts[what]
	l.mu.Unlock()
	return l.sim.Fate(l.name, what, n)
}

// push carries events, each at its own pace.
func (l *link) push() {
	for ev := range l.Driver.Events() {
		l.sim.Look(ev.Key)
		f := l.next("push " + ev.Key)
		if f.LostPush {
			continue
		}
		l.pushes.Go(func() { l.deliver(ev, f.There) })
		if f.Repeats {
			l.pushes.Go(func() { l.deliver(ev, f.There+f.Again) })
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
		l.sim.Tracef("%s receives %v", l.name, ev)
		l.sim.checkDelivered(ev, l.done)
	case <-l.done:
	}
}

func (l *link) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	return carry(ctx, l, "acquire "+r.Key+" "+r.ID, func(d driver.Driver) (driver.State, error) {
		st, err := d.Acquire(context.Background(), r)
		l.sim.Look(r.Key)
		st.Until = time.Time{} // which the store reckons from when it was asked, not from when that was sent
		return st, err
	})
}

func (l *link) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	refs = append([]driver.Ref(nil), refs...)
	var names []string
	for _, r := range refs {
		names = append(names, r.Key+" "+r.ID)
	}
	slices.Sort(names) // a batch has no order
	sent := time.Now()
	states, err := carry(ctx, l, fmt.Sprint("renew ", names), func(d driver.Driver) ([]driver.State, error) {
		states, err := d.Renew(context.Background(), refs)
		for i := range states {
			l.sim.Look(refs[i].Key)
			states[i].Until = time.Time{}
		}
		return states, err
	})
	if l.sim.Rest {
		l.reckon(sent, refs, states)
	}
	return states, err
}

func (l *link) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	return carry(ctx, l, "release "+r.Key+" "+r.ID, func(d driver.Driver) (driver.State, error) {
		st, err := d.Release(context.Background(), r)
		l.sim.Look(r.Key)
		return st, err
	})
}

func (l *link) CanBatch(keys []string) bool { return l.Driver.(driver.Batcher).CanBatch(keys) }

func (l *link) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	what := "acquire"
	for i := range rs {
		what += " " + rs[i].Key + " " + rs[i].ID
	}
	rs = append([]driver.Request(nil), rs...)
	return carry(ctx, l, what, func(d driver.Driver) ([]driver.State, error) {
		states, err := d.(driver.Batcher).AcquireBatch(context.Background(), rs)
		for i := range states {
			l.sim.Look(rs[i].Key)
			states[i].Until = time.Time{}
		}
		return states, err
	})
}

func (l *link) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	what := "release"
	for _, r := range refs {
		what += " " + r.Key + " " + r.ID
	}
	refs = append([]driver.Ref(nil), refs...)
	return carry(ctx, l, what, func(d driver.Driver) ([]driver.State, error) {
		states, err := d.(driver.Batcher).ReleaseBatch(context.Background(), refs)
		for _, r := range refs {
			l.sim.Look(r.Key)
		}
		return states, err
	})
}

// carry takes a call to the store and its answer back, if they arrive.
func carry[T any](ctx context.Context, l *link, what string, call func(driver.Driver) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	f, got := l.next(what), make(chan answer, 1)
	l.sim.Tracef("%s %s is sent", l.name, what)
	l.sim.Go(func() {
		if f.LostThere {
			return
		}
		pause(f.There)
		var a answer
		l.use(func(d driver.Driver) { a.value, a.err = call(d) })
		if f.Again > 0 {
			l.sim.Go(func() { pause(f.Again); l.use(func(d driver.Driver) { _, _ = call(d) }) })
		}
		if f.LostBack {
			return
		}
		pause(f.Back)
		got <- a
	})
	select {
	case a := <-got:
		l.sim.Tracef("%s %s: %v %v", l.name, what, a.value, a.err)
		return a.value, a.err
	case <-ctx.Done():
		pause(f.Tie) // calls that end at one instant return in an order that the seed decides
		l.sim.Tracef("%s %s: given up", l.name, what)
		var none T
		return none, ctx.Err()
	}
}

func (l *link) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	return carry(ctx, l, "inspect "+key, func(d driver.Driver) ([]driver.Claim, error) {
		return d.(driver.Admin).Inspect(context.Background(), key)
	})
}

// observed has the simulation see what a Client asks for, before the network does.
type observed struct {
	sim *Simulation
	driver.Opener
}

func (o observed) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	if err != nil {
		return nil, err
	}
	shown, err := expose(d, &watched{Driver: d, sim: o.sim})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return shown, nil
}

type watched struct {
	driver.Driver
	sim *Simulation
}

func (w *watched) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	w.sim.releases(r)
	return w.Driver.Release(ctx, r)
}

func (w *watched) CanBatch(keys []string) bool { return w.Driver.(driver.Batcher).CanBatch(keys) }

func (w *watched) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	sent := w.sim.Now()
	states, err := w.Driver.(driver.Batcher).AcquireBatch(ctx, rs)
	if err == nil {
		for i, st := range states {
			w.sim.answered(sent, rs[i].Ref, st)
		}
	}
	return states, err
}

func (w *watched) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	for _, r := range refs {
		w.sim.releases(r)
	}
	return w.Driver.(driver.Batcher).ReleaseBatch(ctx, refs)
}
