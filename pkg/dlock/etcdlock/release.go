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

// Release deletes a claim's key, which makes the next one the first.
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
	simple := c != nil && c.phase == driver.Held && !d.waits(r.Key) && !r.Unsettled && !c.tainted
	if simple {
		c.tainted = true // from now on: something else may end the claim before the delete is sent
	}
	if c != nil {
		c.ending = true
	}
	d.mu.Unlock()
	release := func() (driver.Phase, error) {
		switch {
		case simple:
			return d.delete(ctx, c)
		case c != nil:
			return d.remove(ctx, c, r)
		}
		return d.removeUnknown(ctx, r)
	}
	bars := d.bars.current()
	phase, err := release()
	if errors.Is(err, errLeaseGone) { // somebody has revoked that of the bars
		d.bars.lose(bars)
		phase, err = release()
	}
	if c != nil && errors.Is(err, ErrNoSpace) { // for the bar; what is there can still be deleted
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

// delete releases a tainted holder behind whom nobody of ours waits. It does not look
// what it deletes, so that it costs least; if it is not answered, and may yet arrive, the
// claim's key is not used again.
func (d *etcdDriver) delete(ctx context.Context, c *claim) (driver.Phase, error) {
	resp, err := d.client.Delete(ctx, c.own)
	if err != nil {
		return driver.Unknown, classify(err)
	}
	d.mu.Lock()
	c.tainted = false
	d.mu.Unlock()
	if resp.Deleted == 0 {
		return driver.Gone, nil
	}
	return driver.Held, nil
}

// still holds while a claim's key is that of the claim: a release that arrives late
// must not hit the next one that has it.
func (d *etcdDriver) still(c *claim) clientv3.Cmp {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.rev == 0 {
		return clientv3.Compare(clientv3.Value(c.own), "=", c.text)
	}
	return created(c.own, c.rev)
}

// remove releases a claim in any phase. The answer shows who was first and who is
// next; if that is one of ours it has its grant without asking.
func (d *etcdDriver) remove(ctx context.Context, c *claim, r driver.Ref) (driver.Phase, error) {
	line := d.lineOf(c.key)
	bar, err := d.bar(ctx, r)
	if err != nil {
		return driver.Unknown, unsent(err)
	}
	first := clientv3.OpGet(line, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	resp, err := d.client.Txn(ctx).If(d.still(c)).
		Then(append([]clientv3.Op{first, clientv3.OpDelete(c.own)}, bar...)...).
		Else(bar...).
		Commit()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !resp.Succeeded {
		return driver.Gone, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if claims, _ := sift(line, kvs, false); len(claims) < len(kvs) { // what else is there, we cannot tell
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

// handOver grants the key to the next claim, if it is one of ours that waits.
func (d *etcdDriver) handOver(next *mvccpb.KeyValue, rev int64) {
	d.mu.Lock()
	c := d.owns[string(next.Key)]
	waits := c != nil && c.rev == next.CreateRevision && c.phase == driver.Queued
	d.mu.Unlock()
	if waits {
		d.tell(c, position{phase: driver.Held, rev: next.CreateRevision, asOf: rev})
	}
}

// removeUnknown releases a claim that this driver has not filed, or not under this
// key.
func (d *etcdDriver) removeUnknown(ctx context.Context, r driver.Ref) (driver.Phase, error) {
	found, err := d.find(ctx, r.Key, r.ID)
	if err != nil {
		return driver.Unknown, classify(err)
	}
	bar, err := d.bar(ctx, r)
	if err != nil {
		return driver.Unknown, unsent(err)
	}
	if found.kv == nil {
		if len(bar) > 0 {
			_, err = d.client.Do(ctx, bar[0])
		}
		return driver.Gone, classify(err)
	}
	resp, err := d.client.Txn(ctx).If(createdAt(found.kv)).
		Then(append(bar, clientv3.OpDelete(string(found.kv.Key)))...).
		Else(bar...).
		Commit()
	if err != nil {
		return driver.Unknown, classify(err)
	}
	if !resp.Succeeded {
		return driver.Gone, nil
	}
	return found.phase(), nil
}

// A finding is a claim that was looked up in its line.
type found struct {
	kv     *mvccpb.KeyValue
	before *mvccpb.KeyValue // nil if it is the first
}

func (f found) phase() driver.Phase {
	if f.before == nil {
		return driver.Held
	}
	return driver.Queued
}

// readLine reads all claims of a line in their order.
func (d *etcdDriver) readLine(ctx context.Context, line string) ([]*mvccpb.KeyValue, error) {
	resp, err := d.client.Do(ctx, whole(line, 0))
	if err != nil {
		return nil, err
	}
	claims, _ := sift(line, resp.Get().Kvs, true)
	slices.Reverse(claims)
	return claims, nil
}

// idOf is the ID of a claim. Of one that is not ours, its key stands for it.
func idOf(kv *mvccpb.KeyValue, line string) string {
	if r := recordOf(kv); r.ID != "" {
		return r.ID
	}
	return strings.TrimPrefix(string(kv.Key), line)
}

// find looks for a claim by its ID.
func (d *etcdDriver) find(ctx context.Context, key, id string) (found, error) {
	line := d.lineOf(key)
	claims, err := d.readLine(ctx, line)
	if err != nil {
		return found{}, err
	}
	var before *mvccpb.KeyValue
	for _, kv := range claims {
		if idOf(kv, line) == id {
			return found{kv, before}, nil
		}
		before = kv
	}
	return found{}, nil
}

// A barLease carries bars. It is never kept alive: when too little of it is left
// for another bar, the next one is made.
type barLease struct {
	call shared[struct{}]
	mu   sync.Mutex
	id   clientv3.LeaseID
	end  time.Time
}

// bar is what bars an unsettled claim, and nothing for others.
func (d *etcdDriver) bar(ctx context.Context, r driver.Ref) ([]clientv3.Op, error) {
	if !r.Unsettled {
		return nil, nil
	}
	last := driver.BarFor(r.TTL)
	id := d.bars.lasting(last)
	if id == 0 {
		_, err := d.bars.call.do(ctx, d, time.Second, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.grantBars(ctx, last) })
		if err != nil {
			return nil, err
		}
		if id = d.bars.lasting(last); id == 0 { // somebody else's call was for a shorter one
			return nil, errShortBar
		}
	}
	return []clientv3.Op{clientv3.OpPut(d.barKey(r.ID), "", clientv3.WithLease(id))}, nil
}

var errShortBar = errors.New("another bar was made that ends too soon")

func (b *barLease) lasting(span time.Duration) clientv3.LeaseID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Until(b.end) < span {
		return 0
	}
	return b.id
}

func (b *barLease) current() clientv3.LeaseID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id
}

// lose lets the next bar have a new lease, if this one is still in use.
func (b *barLease) lose(id clientv3.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.id == id {
		b.id, b.end = 0, time.Time{}
	}
}

func (d *etcdDriver) grantBars(ctx context.Context, last time.Duration) error {
	sent := time.Now()
	resp, err := d.client.Grant(ctx, seconds(2*last))
	if err != nil {
		return err
	}
	d.bars.mu.Lock()
	defer d.bars.mu.Unlock()
	d.bars.id, d.bars.end = resp.ID, sent.Add(time.Duration(resp.TTL)*time.Second)
	return nil
}
