package faultdriver

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

type faulty struct {
	driver.Driver
	faults     *Faults
	events     chan driver.Event
	stop       chan struct{}
	once       sync.Once
	forwarding sync.WaitGroup
}

type faultyAdmin struct {
	*faulty
	driver.Admin
}

func (d *faulty) Caps() driver.Caps {
	c := d.Driver.Caps()
	c.Remote = c.Remote || d.faults.remote
	return c
}

func (d *faulty) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	return call(ctx, d.faults.draw(Acquire, r.Key), func() (driver.State, error) { return d.Driver.Acquire(ctx, r) })
}

func (d *faulty) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	return call(ctx, d.faults.draw(Release, r.Key), func() (driver.State, error) { return d.Driver.Release(ctx, r) })
}

// CanBatch reports whether the inner driver can acquire and release these keys together.
func (d *faulty) CanBatch(keys []string) bool {
	b, ok := d.Driver.(driver.Batcher)
	return ok && b.CanBatch(keys)
}

// AcquireBatch and ReleaseBatch are calls of Acquire and Release for several keys: a fault strikes all of them.
func (d *faulty) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	keys := make([]string, len(rs))
	for i := range rs {
		keys[i] = rs[i].Key
	}
	return call(ctx, d.faults.draw(Acquire, keys...), func() ([]driver.State, error) { return d.Driver.(driver.Batcher).AcquireBatch(ctx, rs) })
}

func (d *faulty) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	return call(ctx, d.faults.draw(Release, keysOf(refs)...), func() ([]driver.State, error) { return d.Driver.(driver.Batcher).ReleaseBatch(ctx, refs) })
}

func keysOf(refs []driver.Ref) []string {
	keys := make([]string, len(refs))
	for i, r := range refs {
		keys[i] = r.Key
	}
	return keys
}

func (d *faulty) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	strikes := d.faults.draw(Renew, keysOf(refs)...)
	states, err := call(ctx, strikes, func() ([]driver.State, error) { return d.Driver.Renew(ctx, refs) })
	for _, r := range strikes {
		for i := range states {
			if r.Fault == Blank && (r.Key == "" || r.Key == refs[i].Key) {
				states[i] = driver.State{}
			}
		}
	}
	return states, err
}

func (d *faulty) Events() <-chan driver.Event { return d.events }

func (d *faulty) Close() error {
	err := d.Driver.Close()
	d.once.Do(func() { close(d.stop) })
	d.forwarding.Wait()
	return err
}

// reorderWait is how long a push is held back so that another can overtake it.
const reorderWait = 5 * time.Millisecond

// forwardPushes forwards pushes until the inner driver closes its channel.
func (d *faulty) forwardPushes() {
	defer close(d.events)
	inner := d.Driver.Events()
	var kept []driver.Event // overtaken by the next
	for {
		var late <-chan time.Time
		if len(kept) > 0 {
			late = time.After(reorderWait)
		}
		select {
		case ev, ok := <-inner:
			if !ok {
				return
			}
			kept = d.pushOne(ev, kept)
		case <-late:
			d.send(kept...)
			kept = nil
		case <-d.stop:
			return
		}
	}
}

// pushOne delivers a push and those that were held back, and returns the pushes that are held back
// now.
func (d *faulty) pushOne(ev driver.Event, kept []driver.Event) []driver.Event {
	out := []driver.Event{ev}
	for _, r := range d.faults.draw(Push, ev.Key) {
		switch r.Fault {
		case LosePush:
			out = nil
		case RepeatPush:
			out = append(out, ev)
		case ReorderPush:
			return append(kept, out...)
		default:
		}
	}
	d.send(append(out, kept...)...)
	return nil
}

func (d *faulty) send(events ...driver.Event) {
	for _, ev := range events {
		select {
		case d.events <- ev:
		case <-d.stop:
			return
		}
	}
}
