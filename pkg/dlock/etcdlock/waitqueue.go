package etcdlock

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// near is the largest number of claims that a look reads of each range.
const near = 17

// whole reads all claims of a queue, with values and leases, up to the one created at rev if rev is not 0.
func whole(prefix string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(prefix, append(backwards(rev, opts), clientv3.WithPrefix())...)
}

func backwards(rev int64, opts []clientv3.OpOption) []clientv3.OpOption {
	opts = append(slices.Clone(opts), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	if rev > 0 {
		opts = append(opts, clientv3.WithMaxCreateRev(rev))
	}
	return opts
}

// others returns the ranges of keys that a claim of this kind cannot hold the lock with. For a writer
// it is everything, the claim itself included.
func (k kind) others(prefix string) (ranges [][2]string) {
	part := k.part()
	if part == "" {
		return [][2]string{{prefix, clientv3.GetPrefixRangeEnd(prefix)}}
	}
	ranges = append(ranges, [2]string{prefix, prefix + part})
	if part != lastPart {
		ranges = append(ranges, [2]string{prefix + partEnd(part), prefix + partEnd(lastPart)})
	}
	return ranges
}

// reads returns the reads that show the place of a claim of this kind that was created at rev, or is the
// last if rev is 0: the nearest claims that it must wait for and, for a permit, the permits before it or,
// if rev is 0, their number. With whole, the claims that it must wait for are complete, with values and leases.
func (k kind) reads(prefix string, rev int64, whole bool, opts ...clientv3.OpOption) (ops []clientv3.Op) {
	for _, r := range k.others(prefix) {
		all := append(backwards(rev, opts), clientv3.WithRange(r[1]))
		if !whole {
			all = append(all, clientv3.WithKeysOnly(), clientv3.WithLimit(near))
		}
		ops = append(ops, clientv3.OpGet(r[0], all...))
	}
	if k.mode != driver.Permit {
		return ops
	}
	same := append(slices.Clone(opts), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if rev > 0 { // a count includes those behind it
		same = append(backwards(rev, opts), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	}
	return append(ops, clientv3.OpGet(prefix+k.part(), same...))
}

// place finds a claim in the answers to reads; sure is false if they are not enough: because they were not whole,
// or because a number of permits may include other data. The claim was created at rev.
func (k kind) place(own, prefix string, rev int64, answers []*pb.ResponseOp, whole bool) (p position, sure bool) {
	if k.part() == "" {
		return place(own, prefix, rev, answers[0].GetResponseRange().Kvs, whole)
	}
	var before []*mvccpb.KeyValue
	for i := range k.others(prefix) {
		kvs := answers[i].GetResponseRange().Kvs
		claims, known := sift(prefix, kvs, whole)
		if !known || (!whole && len(kvs) == near && len(claims) == 0) {
			return position{}, false
		}
		before = append(before, claims...)
	}
	if len(before) > 0 {
		last := slices.MaxFunc(before, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
		return position{phase: driver.Queued, rev: rev, before: string(last.Key), beforeRev: last.CreateRevision, ahead: len(before)}, true
	}
	held := position{phase: driver.Held, rev: rev}
	if k.mode != driver.Permit {
		return held, true
	}
	same := answers[len(answers)-1].GetResponseRange()
	permits, _ := sift(prefix, same.Kvs, true)
	switch {
	case same.Count <= int64(k.limit), len(permits) > 0 && len(permits) <= k.limit:
		return held, true
	case len(permits) == 0: // they were only counted
		return position{}, false
	}
	return position{phase: driver.Queued, rev: rev, ahead: len(permits) - 1}, true
}

// place finds a writer among the keys that it must wait for; sure is false if they are not all, and not
// enough.
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
// behind. Its answer "held" is then true, because a claim that once held the lock keeps it; any
// other answer may be out of date.
func (d *etcdDriver) look(ctx context.Context, c *claim, rev int64, opts ...clientv3.OpOption) (position, error) {
	p, sure, err := d.lookOnce(ctx, c, rev, false, opts)
	if err == nil && !sure {
		p, _, err = d.lookOnce(ctx, c, rev, true, opts)
	}
	return p, err
}

func (d *etcdDriver) lookOnce(ctx context.Context, c *claim, rev int64, whole bool, opts []clientv3.OpOption) (p position, sure bool, err error) {
	defer recoverPanic(&err)
	prefix := d.prefixOf(c.key)
	ops := c.kind.reads(prefix, rev, whole, opts...)
	if c.kind.mode == driver.Exclusive { // it is among what is read
		resp, err := d.client.Do(ctx, ops[0])
		if err != nil {
			return position{}, false, classify(err)
		}
		p, sure = place(c.own, prefix, rev, resp.Get().Kvs, whole)
		p.asOf = resp.Get().Header.Revision
		return p, sure, nil
	}
	own := clientv3.OpGet(c.own, append(slices.Clone(opts), clientv3.WithKeysOnly())...)
	resp, err := d.client.Txn(ctx).Then(append(ops, own)...).Commit()
	if err != nil {
		return position{}, false, classify(err)
	}
	answers, last := resp.Responses, len(resp.Responses)-1
	p, sure = position{phase: driver.Gone}, true
	if kvs := answers[last].GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].CreateRevision == rev {
		p, sure = c.kind.place(c.own, prefix, rev, answers[:last], whole)
	}
	p.asOf = resp.Header.Revision
	return p, sure, nil
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

// isFirst reports whether a claim is the first of this driver that waits for its key. The caller holds mu.
func (d *etcdDriver) isFirst(c *claim) bool {
	q := d.queues[c.key]
	return q == nil || len(q.waiting) == 0 || q.waiting[0] == c
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
	if p.rev < c.rev || (c.phase == driver.Held && p.rev == c.rev) {
		return // once the first, it stays it, unless it was removed and stored again between two submissions at a time
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
