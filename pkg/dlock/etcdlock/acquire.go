package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
)

// A record is the value of a claim's key. People and Inspect read it.
type record struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	driver.Info
	Created time.Time `json:"created"`
	Lease   string    `json:"lease"`
	Mode    string    `json:"mode"`
	Limit   int       `json:"limit,omitempty"`
}

func (c *claim) value(i driver.Info) string {
	text, _ := json.Marshal(record{ // strings and numbers can always be encoded
		ID: c.id, Key: c.key, Info: i, Created: time.Now().UTC(), Lease: strconv.FormatInt(int64(c.lease.id), 16), Mode: c.kind.mode.String(), Limit: c.kind.limit,
	})
	return string(text)
}

// submit stores a claim and finds its place. If much of its lease has passed, submit also sends a
// keep-alive, which must succeed too.
func (d *etcdDriver) submit(ctx context.Context, c *claim, r driver.Request, hasRoom bool) (driver.State, error) {
	sent := time.Now()
	d.mu.Lock()
	l, s := c.lease, d.submissionOf(c, r)
	s.hasRoom = hasRoom
	join := c.rev != 0 || l.aged(sent)
	d.mu.Unlock()
	alive := d.joinLease(ctx, l, join)
	p, err := d.send(ctx, s)
	if errors.Is(err, ErrNoSpace) {
		err = d.withdraw(ctx, err, s)
	}
	if err != nil {
		return driver.State{}, err
	}
	if p.phase != driver.Gone {
		if err := awaitLease(alive); err != nil {
			return driver.State{}, err
		}
	}
	return d.record(c, p, sent), nil
}

// submissionOf returns what is sent for a claim. The caller holds mu.
func (d *etcdDriver) submissionOf(c *claim, r driver.Request) submission {
	return submission{
		claim: c, prefix: d.prefixOf(c.key), tombstone: d.tombstoneKey(c.id), lease: c.lease.id, text: c.text, rev: c.rev,
		wait: r.Wait, busy: d.queues[c.key] != nil,
	}
}

// joinLease sends a keep-alive for a lease that claims join, if one is needed.
func (d *etcdDriver) joinLease(ctx context.Context, l *lease, needed bool) chan error {
	if !needed {
		return nil
	}
	alive := make(chan error, 1)
	d.work.Go(func() { alive <- d.keepAlive(ctx, l) })
	return alive
}

// awaitLease waits for the answer to that keep-alive. The claims are stored.
func awaitLease(alive chan error) error {
	if alive == nil {
		return nil
	}
	return stored(<-alive)
}

// withdraw takes back claims that the server refused because it is out of space: etcd carries out
// the transaction that reaches the quota, but still returns the error. A delete still works then. A
// delete that is not answered may still arrive, so the claims are not submitted again.
func (d *etcdDriver) withdraw(ctx context.Context, refused error, ss ...submission) error {
	var deletes []clientv3.Op
	for _, s := range ss {
		deletes = append(deletes, clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(s.own), "=", s.text)}, []clientv3.Op{clientv3.OpDelete(s.own)}, nil))
	}
	deleted := make(chan error, 1)
	d.work.Go(func() { // also if the caller's context ends
		limited, cancel := context.WithTimeout(d.ctx, withdrawTimeout)
		defer cancel()
		var err error
		defer func() { deleted <- err }()
		defer recoverPanic(&err)
		_, err = d.client.Txn(limited).Then(deletes...).Commit()
	})
	var err error
	select {
	case err = <-deleted:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		return refused
	}
	for _, s := range ss {
		d.retire(s.claim)
	}
	return driver.Classify(fmt.Errorf("%w, and the claim was not taken back: %w", refused, err), driver.Ambiguous)
}

// retire keeps a claim from being submitted again: a delete of it may still arrive.
func (d *etcdDriver) retire(c *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.retired = true
}

func (d *etcdDriver) isRetired(c *claim) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.retired
}

// withdrawTimeout is how long withdraw tries.
const withdrawTimeout = time.Second

// A submission is what is sent for a claim.
type submission struct {
	*claim
	prefix, tombstone string
	lease             clientv3.LeaseID
	text              string
	rev               int64 // of the claim's creation, if that is known: then it is not stored once more
	wait              bool
	hasRoom           bool // it may be submitted to a queue now
	busy              bool // a claim of this driver waits for the key, or did recently
}

func (s *submission) put() clientv3.Op {
	return clientv3.OpPut(s.own, s.text, clientv3.WithLease(s.lease))
}

// free compares true if there is no claim on the lock, and no tombstone of this claim.
func (s *submission) free() []clientv3.Cmp {
	return []clientv3.Cmp{created(s.tombstone, 0), clientv3.Compare(clientv3.CreateRevision(s.prefix).WithPrefix(), "=", 0)}
}

// isStored reports whether the claim's key holds this claim.
func (s *submission) isStored(kvs []*mvccpb.KeyValue) bool {
	if len(kvs) == 0 {
		return false
	}
	if s.rev != 0 {
		return kvs[0].CreateRevision == s.rev
	}
	return string(kvs[0].Value) == s.text
}

// send stores a claim, unless it is stored. It first assumes that the key is free, which is cheapest if it is; for a
// busy key it puts the claim at the end of the queue at once.
func (d *etcdDriver) send(ctx context.Context, s submission) (position, error) {
	switch isPermit := s.kind.mode == driver.Permit; { // which may share the lock with others
	case s.rev != 0:
		return d.findStored(ctx, s)
	case s.wait && (s.busy || isPermit):
		return d.enqueue(ctx, s)
	case isPermit:
		return d.try(ctx, s)
	}
	free := s.free()
	if s.kind.mode == driver.Shared { // other readers do not matter
		others := clientv3.Compare(clientv3.CreateRevision(s.prefix).WithRange(s.prefix+s.kind.part()), "=", 0)
		free = []clientv3.Cmp{created(s.tombstone, 0), created(s.own, 0), others}
	}
	a, err := d.batches.do(ctx, &call{lock: s.key, own: s.own, text: s.text, ifs: free, op: s.put(), alone: func(ctx context.Context) (answer, error) {
		resp, err := d.kv.Txn(ctx).If(free...).Then(s.put()).Commit()
		if err != nil {
			return answer{}, err
		}
		return answer{resp.Succeeded, resp.Header.Revision}, nil
	}})
	if err != nil {
		return position{}, classify(err)
	}
	if a.ok {
		return position{phase: driver.Held, rev: a.rev, asOf: a.rev}, nil
	}
	if s.wait {
		return d.enqueue(ctx, s)
	}
	return d.try(ctx, s)
}

// try finds out why a claim that does not wait was not stored. A permit may still fit: it is stored if
// no other claim has been stored since the permits were counted.
func (d *etcdDriver) try(ctx context.Context, s submission) (position, error) {
	begun := time.Now()
	for range maxTries {
		if time.Since(begun) > tryTime {
			break
		}
		resp, err := d.kv.Txn(ctx).Then(append(s.kind.probes(s.prefix), clientv3.OpGet(s.own), clientv3.OpGet(s.tombstone, clientv3.WithCountOnly()))...).Commit()
		if err != nil {
			return position{}, classify(err)
		}
		answers, n := resp.Responses, len(resp.Responses)
		own, tombstone := answers[n-2].GetResponseRange(), answers[n-1].GetResponseRange()
		blocked, sure := s.kind.blocked(s.prefix, answers[:n-2])
		switch {
		case s.isStored(own.Kvs):
			return d.withoutWaiting(ctx, s, func() (position, error) { return d.lookStored(ctx, s.claim, own.Kvs[0].CreateRevision) })
		case tombstone.Count > 0, sure && blocked:
			return position{phase: driver.Gone}, nil
		case !sure || s.kind.mode != driver.Permit:
			return d.tryAmongStrangers(ctx, s)
		}
		unchanged := clientv3.Compare(clientv3.CreateRevision(s.prefix).WithPrefix(), "<", resp.Header.Revision+1)
		stored, err := d.kv.Txn(ctx).If(created(s.tombstone, 0), created(s.own, 0), unchanged).Then(s.put()).Commit()
		if err != nil {
			return position{}, classify(err)
		}
		if rev := stored.Header.Revision; stored.Succeeded {
			return position{phase: driver.Held, rev: rev, asOf: rev}, nil
		}
	}
	return d.tryAmongStrangers(ctx, s)
}

// maxTries is how often a permit that does not wait is tried while others come, and tryTime for how long. Each time
// at least one of the others has been stored.
const (
	maxTries = 32
	tryTime  = 300 * time.Millisecond
)

// probes returns reads that show whether a new claim would have to wait. They do not sort, so the server reads no
// value that it does not send; it still counts the keys.
func (k kind) probes(prefix string) (ops []clientv3.Op) {
	for _, r := range k.others(prefix) {
		ops = append(ops, clientv3.OpGet(r[0], clientv3.WithRange(r[1]), clientv3.WithKeysOnly(), clientv3.WithLimit(near)))
	}
	if k.mode == driver.Permit {
		ops = append(ops, clientv3.OpGet(prefix+k.part(), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(near)))
	}
	return ops
}

// blocked reads the answers to probes; sure is false if they may have shown other data only.
func (k kind) blocked(prefix string, answers []*pb.ResponseOp) (blocked, sure bool) {
	sure = true
	for i := range k.others(prefix) {
		kvs := answers[i].GetResponseRange().Kvs
		claims, known := sift(prefix, kvs, false)
		if len(claims) > 0 {
			return true, true
		}
		sure = sure && known && len(kvs) < near
	}
	if k.mode == driver.Permit {
		same := answers[len(answers)-1].GetResponseRange() // it counts more than it has read
		permits, _ := sift(prefix, same.Kvs, true)
		if len(permits) >= k.limit || (same.Count >= int64(k.limit) && len(permits) == len(same.Kvs)) {
			return true, true
		}
		sure = sure && same.Count < int64(k.limit)
	}
	return false, sure
}

// tryAmongStrangers submits a claim that does not wait when the keys below the lock's name may be
// other data: it queues the claim and removes it if it does not hold the lock.
func (d *etcdDriver) tryAmongStrangers(ctx context.Context, s submission) (position, error) {
	return d.withoutWaiting(ctx, s, func() (position, error) { return d.enqueue(ctx, s) })
}

// withoutWaiting removes a stored claim that does not wait, if it does not hold the lock.
func (d *etcdDriver) withoutWaiting(ctx context.Context, s submission, find func() (position, error)) (position, error) {
	p, err := find()
	if err != nil || p.phase != driver.Queued {
		return p, err
	}
	_, err = d.client.Txn(ctx).If(created(s.own, p.rev)).Then(clientv3.OpDelete(s.own)).Commit()
	if err != nil {
		d.retire(s.claim)
		return position{}, stored(err)
	}
	return position{phase: driver.Gone}, nil
}

// enqueue submits a claim at the end of the queue.
func (d *etcdDriver) enqueue(ctx context.Context, s submission) (position, error) {
	leave := func() {}
	if !s.hasRoom {
		var err error
		if leave, err = d.takeRoom(ctx, s.wait); err != nil {
			return position{}, err
		}
	}
	defer leave()
	resp, err := d.kv.Txn(ctx).
		If(created(s.tombstone, 0), created(s.own, 0)).
		Then(append([]clientv3.Op{s.put()}, s.kind.reads(s.prefix, 0, false)...)...).
		Else(clientv3.OpGet(s.own)).
		Commit()
	leave()
	if err != nil {
		return position{}, classify(err)
	}
	rev := resp.Header.Revision
	if !resp.Succeeded {
		if own := resp.Responses[0].GetResponseRange().Kvs; s.isStored(own) {
			return d.lookStored(ctx, s.claim, own[0].CreateRevision)
		}
		return position{phase: driver.Gone}, nil // it has a tombstone
	}
	p, sure := s.kind.place(s.own, s.prefix, rev, resp.Responses[1:], false)
	if !sure {
		return d.lookStored(ctx, s.claim, rev)
	}
	p.asOf = rev
	if s.kind.mode == driver.Exclusive && p.ahead > 0 {
		p.ahead = max(int(resp.Responses[1].GetResponseRange().Count)-1, p.ahead)
	}
	return p, nil
}

// lookStored is look for a claim that was just submitted.
func (d *etcdDriver) lookStored(ctx context.Context, c *claim, rev int64) (position, error) {
	p, err := d.look(ctx, c, rev)
	return p, stored(err)
}

// stored marks the error of a call made after the claim was stored: whatever the error means for
// that call, the claim exists.
func stored(err error) error {
	return driver.Classify(hide.From(err, driver.ErrUnavailable), driver.Ambiguous)
}

// created compares the creation revision of a key, which is 0 for a key that does not exist.
func created(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// record stores what a call learned about a claim and returns it as a State. sent is when the call
// was sent.
func (d *etcdDriver) record(c *claim, p position, sent time.Time) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[c.id] != c || p.phase == driver.Gone {
		d.forget(c)
		return driver.State{Phase: driver.Gone}
	}
	if c.swept {
		return driver.State{Phase: driver.Gone} // it is forgotten when the sweep has succeeded
	}
	d.setPosition(c, p)
	c.seen = sent
	if c.phase == driver.Held {
		c.span = c.lease.ttl
		until, lease := d.until(c)
		return driver.State{Phase: driver.Held, Token: c.rev, Until: until, Lease: lease}
	}
	waiter := driver.Ref{TTL: c.lease.ttl, QueueTTL: c.queueTTL}
	c.span = waiter.Heartbeat()
	until, lease := d.until(c)
	if beat := sent.Add(c.span); beat.Before(until) {
		until = beat
	}
	return driver.State{Phase: driver.Queued, Ahead: c.ahead, Until: until, Lease: lease}
}

// until returns the earliest time at which the server may drop a claim, and the TTL of its lease if that is shorter than
// the one of the claim.
func (d *etcdDriver) until(c *claim) (end time.Time, shorter time.Duration) {
	end = c.lease.end()
	if o := c.other; o != nil && o.end().Before(end) {
		end = o.end()
		if o.ttl < c.lease.ttl {
			shorter = o.ttl
		}
	}
	return end, shorter
}
