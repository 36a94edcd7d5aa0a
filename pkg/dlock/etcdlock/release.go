package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Release deletes a claim's key, which makes the next claim the first.
func (d *etcdDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx)
	d.mu.Lock()
	c := d.claims[r.ID]
	if c != nil && c.key != r.Key {
		c = nil
	}
	simple := d.endsSimply(c, r)
	if c != nil {
		c.ending = true
	}
	d.mu.Unlock()
	release := func() (driver.Phase, error) {
		switch {
		case simple:
			return d.delete(ctx, c)
		case c != nil && c.kind.mode == driver.Exclusive:
			return d.remove(ctx, c, r)
		case c != nil:
			return d.removeJoint(ctx, c, r)
		}
		return d.removeUnknown(ctx, r)
	}
	tombstones := d.tombstones.current()
	phase, err := release()
	if errors.Is(err, errLeaseGone) { // another party has revoked the lease of the tombstones
		d.tombstones.lose(tombstones)
		phase, err = release()
	}
	if c != nil && errors.Is(err, ErrNoSpace) { // for the tombstone; what is there can still be deleted
		_, _ = d.client.Txn(ctx).If(d.still(c)).Then(clientv3.OpDelete(c.own)).Commit()
		err = driver.Classify(err, driver.Ambiguous)
	}
	if err != nil {
		return driver.State{}, err
	}
	if c != nil {
		d.mu.Lock()
		d.forget(c)
		d.mu.Unlock()
	}
	return driver.State{Phase: phase}, nil
}

// endsSimply reports whether a claim can be released by delete, and taints it if so. The caller holds mu.
func (d *etcdDriver) endsSimply(c *claim, r driver.Ref) bool {
	if c == nil || c.key != r.Key || c.phase != driver.Held || d.waits(r.Key) || r.Unanswered || c.tainted {
		return false
	}
	c.tainted = true // from now on: something else may end the claim before the delete is sent
	c.ending = true
	return true
}

// delete releases a tainted holder when no claim of this driver waits behind it. It does not check
// what it deletes, which is the cheapest way. If the delete is not answered and may still arrive,
// the claim's key is not reused.
func (d *etcdDriver) delete(ctx context.Context, c *claim) (driver.Phase, error) {
	a, err := d.batches.do(ctx, &call{lock: c.key, own: c.own, op: clientv3.OpDelete(c.own), alone: func(ctx context.Context) (answer, error) {
		resp, err := d.client.Delete(ctx, c.own)
		if err != nil {
			return answer{}, err
		}
		return answer{resp.Deleted > 0, resp.Header.Revision}, nil
	}})
	d.mu.Lock()
	c.tainted = err != nil && driver.ClassOf(err) == driver.Ambiguous // any other says that it was not sent
	d.mu.Unlock()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !a.ok {
		return driver.Gone, nil
	}
	return driver.Held, nil
}

// still compares true while the claim's key belongs to the claim: a release that arrives late must
// not delete the next claim that uses the key.
func (d *etcdDriver) still(c *claim) clientv3.Cmp {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.rev == 0 {
		return clientv3.Compare(clientv3.Value(c.own), "=", c.text)
	}
	return created(c.own, c.rev)
}

// remove releases a claim in any phase. The answer shows which claim was first and which is next;
// if the next one belongs to this driver, it is granted without another call.
func (d *etcdDriver) remove(ctx context.Context, c *claim, r driver.Ref) (driver.Phase, error) {
	prefix := d.prefixOf(c.key)
	tombstone, err := d.tombstone(ctx, r)
	if err != nil {
		return driver.Unknown, unsent(err)
	}
	first := clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	resp, err := d.client.Txn(ctx).If(d.still(c)).
		Then(append([]clientv3.Op{first, clientv3.OpDelete(c.own)}, tombstone...)...).
		Else(tombstone...).
		Commit()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !resp.Succeeded {
		return driver.Gone, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if claims, _ := sift(prefix, kvs, false); len(claims) < len(kvs) { // the keys below the name include other data
		d.mu.Lock()
		defer d.mu.Unlock()
		return max(c.phase, driver.Queued), nil
	}
	if string(kvs[0].Key) != c.own {
		return driver.Queued, nil
	}
	if len(kvs) == 2 {
		d.handOver(kvs[1], resp.Header.Revision)
	}
	return driver.Held, nil
}

// removeJoint releases a reader or a permit in any phase.
func (d *etcdDriver) removeJoint(ctx context.Context, c *claim, r driver.Ref) (driver.Phase, error) {
	prefix := d.prefixOf(c.key)
	tombstone, err := d.tombstone(ctx, r)
	if err != nil {
		return driver.Unknown, unsent(err)
	}
	d.mu.Lock()
	phase, rev := c.phase, c.rev
	d.mu.Unlock()
	var reads []clientv3.Op
	if phase == driver.Queued { // one that holds the lock keeps it; of one that was not answered, nothing is known
		reads = c.kind.reads(prefix, rev, false)
	}
	resp, err := d.client.Txn(ctx).If(d.still(c)).
		Then(slices.Concat(reads, []clientv3.Op{clientv3.OpDelete(c.own)}, tombstone)...).
		Else(tombstone...).
		Commit()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !resp.Succeeded {
		return driver.Gone, nil
	}
	if phase == driver.Queued {
		p, sure := c.kind.place(c.own, prefix, rev, resp.Responses[:len(reads)], false)
		if sure {
			phase = p.phase
		}
	}
	return max(phase, driver.Queued), nil
}

// handOver grants the key to the next claim if it is a waiting claim of this driver.
func (d *etcdDriver) handOver(next *mvccpb.KeyValue, rev int64) {
	d.mu.Lock()
	c := d.owns[string(next.Key)]
	waits := c != nil && c.rev == next.CreateRevision && c.phase == driver.Queued
	d.mu.Unlock()
	if waits {
		d.notify(c, position{phase: driver.Held, rev: next.CreateRevision, asOf: rev})
	}
}

// removeUnknown releases a claim that this driver did not submit, or not under this key. The tombstone comes
// first, so that a submission which is still under way is either refused by it or found.
func (d *etcdDriver) removeUnknown(ctx context.Context, r driver.Ref) (driver.Phase, error) {
	tombstone, err := d.tombstone(ctx, r)
	if err != nil {
		return driver.Unknown, unsent(err)
	}
	var full error // no space for the tombstone; what is there can still be deleted
	if len(tombstone) > 0 {
		_, err = d.client.Do(ctx, tombstone[0])
		if err = classify(err); errors.Is(err, ErrNoSpace) {
			full, err = driver.Classify(err, driver.Ambiguous), nil
		}
		if err != nil {
			return driver.Unknown, err
		}
	}
	found, err := d.find(ctx, r.Key, r.ID)
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if found.kv == nil {
		return driver.Gone, full
	}
	resp, err := d.client.Txn(ctx).If(createdAt(found.kv)).Then(clientv3.OpDelete(string(found.kv.Key))).Commit()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !resp.Succeeded {
		return driver.Gone, full
	}
	return found.phase(), full
}

// found is a claim that was looked up in its queue.
type found struct {
	kv     *mvccpb.KeyValue
	before []*mvccpb.KeyValue // the claims that keep it waiting: none if it is held
}

func (f found) phase() driver.Phase {
	if len(f.before) == 0 {
		return driver.Held
	}
	return driver.Queued
}

// readQueue reads all claims of a queue in order.
func (d *etcdDriver) readQueue(ctx context.Context, prefix string) ([]*mvccpb.KeyValue, error) {
	resp, err := d.client.Do(ctx, whole(prefix, 0))
	if err != nil {
		return nil, err
	}
	claims, _ := sift(prefix, resp.Get().Kvs, true)
	slices.Reverse(claims)
	return claims, nil
}

// idOf returns the ID of a claim. For a claim of another program, the key is the ID.
func idOf(kv *mvccpb.KeyValue, prefix string) string {
	if r := recordOf(kv); r.ID != "" {
		return r.ID
	}
	return strings.TrimPrefix(string(kv.Key), prefix)
}

// find looks for a claim by its ID.
func (d *etcdDriver) find(ctx context.Context, key, id string) (found, error) {
	prefix := d.prefixOf(key)
	claims, err := d.readQueue(ctx, prefix)
	if err != nil {
		return found{}, err
	}
	i := slices.IndexFunc(claims, func(kv *mvccpb.KeyValue) bool { return idOf(kv, prefix) == id })
	switch {
	case i < 0:
		return found{}, nil
	case i < holding(prefix, claims):
		return found{kv: claims[i]}, nil
	}
	return found{kv: claims[i], before: keepWaiting(prefix, claims[:i+1])}, nil
}

// keepWaiting returns claims because of which the last claim of a queue waits, and does so while all of
// them exist.
func keepWaiting(prefix string, claims []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	last := len(claims) - 1
	k, _ := cutKind(strings.TrimPrefix(string(claims[last].Key), prefix))
	for _, kv := range slices.Backward(claims[:last]) {
		other, _ := cutKind(strings.TrimPrefix(string(kv.Key), prefix))
		if !k.joins(other, 0) {
			return []*mvccpb.KeyValue{kv}
		}
	}
	return claims[:min(k.limit, last)]
}

// A tombstoneLease carries tombstones. It is never kept alive: when too little time remains for
// another tombstone, the next one gets a new lease.
type tombstoneLease struct {
	call shared[struct{}]
	mu   sync.Mutex
	id   clientv3.LeaseID
	end  time.Time
}

// tombstone returns the write of the tombstone of an unanswered claim, and nothing for other
// claims.
func (d *etcdDriver) tombstone(ctx context.Context, r driver.Ref) ([]clientv3.Op, error) {
	if !r.Unanswered {
		return nil, nil
	}
	last := driver.TombstoneTTL(r.TTL)
	id := d.tombstones.lasting(last)
	if id == 0 {
		_, err := d.tombstones.call.do(ctx, d, time.Second, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.grantTombstones(ctx, last) })
		if err != nil {
			return nil, err
		}
		id = d.tombstones.lasting(last)
		if id == 0 { // another call requested a shorter one
			return nil, errShortTombstone
		}
	}
	return []clientv3.Op{clientv3.OpPut(d.tombstoneKey(r.ID), "", clientv3.WithLease(id))}, nil
}

var errShortTombstone = errors.New("another tombstone was made that ends too soon")

func (b *tombstoneLease) lasting(span time.Duration) clientv3.LeaseID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Until(b.end) < span {
		return 0
	}
	return b.id
}

func (b *tombstoneLease) current() clientv3.LeaseID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id
}

// lose makes the next tombstone use a new lease, if this one is still in use.
func (b *tombstoneLease) lose(id clientv3.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.id == id {
		b.end = time.Time{}
	}
}

func (d *etcdDriver) grantTombstones(ctx context.Context, last time.Duration) error {
	sent := time.Now()
	resp, err := d.client.Grant(ctx, seconds(2*last))
	if err != nil {
		return err
	}
	d.tombstones.mu.Lock()
	defer d.tombstones.mu.Unlock()
	d.tombstones.id, d.tombstones.end = resp.ID, sent.Add(time.Duration(resp.TTL)*time.Second)
	return nil
}
