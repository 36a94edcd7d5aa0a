package etcdlock

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// near is the largest number of claims that look reads.
const near = 17

// nearest reads the keys of the last claims in a queue, up to the one created at rev if rev is not
// 0.
func nearest(prefix string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(prefix, append(backwards(rev, opts), clientv3.WithKeysOnly(), clientv3.WithLimit(near))...)
}

// whole reads all of them, with values and leases.
func whole(prefix string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(prefix, backwards(rev, opts)...)
}

func backwards(rev int64, opts []clientv3.OpOption) []clientv3.OpOption {
	opts = append(slices.Clone(opts), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	if rev > 0 {
		opts = append(opts, clientv3.WithMaxCreateRev(rev))
	}
	return opts
}

// place finds a claim in the result of nearest or whole; sure is false if the result of nearest is
// not enough.
func place(own, prefix string, rev int64, kvs []*mvccpb.KeyValue, whole bool) (p position, sure bool) {
	all, sure := sift(prefix, kvs, whole)
	sure = sure && (whole || len(kvs) < near || len(all) > 1)
	switch {
	case len(all) == 0 || string(all[0].Key) != own || all[0].CreateRevision != rev:
		return position{phase: driver.Gone}, sure
	case len(all) == 1:
		return position{phase: driver.Held, rev: rev}, sure
	}
	return position{phase: driver.Queued, rev: rev, before: string(all[1].Key), beforeRev: all[1].CreateRevision, ahead: len(all) - 1}, sure
}

// look reads the place of a claim. A serializable look may be answered by a member that lags
// behind. Its answer "first" is then true, because a claim that was once the first stays first; any
// other answer may be out of date.
func (d *etcdDriver) look(ctx context.Context, c *claim, rev int64, opts ...clientv3.OpOption) (position, error) {
	prefix := d.prefixOf(c.key)
	resp, err := d.client.Do(ctx, nearest(prefix, rev, opts...))
	if err != nil {
		return position{}, classify(err)
	}
	p, sure := place(c.own, prefix, rev, resp.Get().Kvs, false)
	if !sure {
		if resp, err = d.client.Do(ctx, whole(prefix, rev, opts...)); err != nil {
			return position{}, classify(err)
		}
		p, _ = place(c.own, prefix, rev, resp.Get().Kvs, true)
	}
	p.asOf = resp.Get().Header.Revision
	return p, nil
}

// A waitQueue holds the claims of this driver that wait for one key. One goroutine serves it: it
// watches the claim before the first of them. The queue stays for a while after the last waiter has
// left: claims that contend for a key do so repeatedly, each behind the same one, and a watch that
// already exists costs nothing.
type waitQueue struct {
	key     string
	prefix  string
	waiting []*claim      // by order of creation
	changed chan struct{} // buffered by one
}

// queueStays is how long an empty queue stays.
const queueStays = 3 * time.Second

func (q *waitQueue) poke() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// waits reports whether claims of this driver wait for a key. The caller holds mu.
func (d *etcdDriver) waits(key string) bool {
	q := d.queues[key]
	return q != nil && len(q.waiting) > 0
}

// known reports whether a claim of this driver exists, as far as the driver knows.
func (d *etcdDriver) known(own string, rev int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.owns[own]
	return c != nil && c.rev == rev
}

// setPosition records the position of an existing claim. The caller holds mu.
func (d *etcdDriver) setPosition(c *claim, p position) {
	if c.phase == driver.Held {
		return // once the first, it stays it
	}
	c.text = ""
	if p.phase == driver.Held || p.asOf >= c.asOf {
		c.position = p
	}
	if p.phase == driver.Held {
		d.leaveQueue(c)
		d.keys.hold(c)
		return
	}
	q := d.queues[c.key]
	if q == nil {
		q = &waitQueue{key: c.key, prefix: d.prefixOf(c.key), changed: make(chan struct{}, 1)}
		d.queues[c.key] = q
		d.work.Go(func() { (&queueWatcher{etcdDriver: d, queue: q}).run() })
	}
	if !slices.Contains(q.waiting, c) {
		i, _ := slices.BinarySearchFunc(q.waiting, c.rev, func(w *claim, rev int64) int { return int(w.rev - rev) })
		q.waiting = slices.Insert(q.waiting, i, c)
	}
	if q.waiting[0] == c {
		q.poke()
	}
}

// leaveQueue removes a claim that no longer waits, or never did. Another claim of this driver may
// have been behind it. The caller holds mu.
func (d *etcdDriver) leaveQueue(c *claim) {
	q := d.queues[c.key]
	if q == nil {
		return
	}
	if i := slices.Index(q.waiting, c); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	if len(q.waiting) > 0 {
		q.poke()
	}
}

// notify pushes the new state of a waiting claim.
func (d *etcdDriver) notify(c *claim, p position) {
	d.mu.Lock()
	if d.claims[c.id] != c || c.phase == driver.Held || c.swept {
		d.mu.Unlock()
		return
	}
	if p.phase == driver.Gone {
		d.forget(c)
	} else {
		d.setPosition(c, p)
	}
	d.mu.Unlock()
	if p.phase != driver.Queued {
		d.Send(driver.Event{Key: c.key, ID: c.id, State: driver.State{Phase: p.phase, Token: p.rev}})
	}
}
