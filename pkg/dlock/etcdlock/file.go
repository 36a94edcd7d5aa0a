package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
)

// A record is the value of a claim's key, for people and for Inspect.
type record struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	driver.Info
	Created time.Time `json:"created"`
	Lease   string    `json:"lease"`
	Mode    string    `json:"mode"`
}

func (c *claim) value(i driver.Info) string {
	text, _ := json.Marshal(record{ // strings and numbers can always be encoded
		ID: c.id, Key: c.key, Info: i, Created: time.Now().UTC(), Lease: strconv.FormatInt(int64(c.lease.id), 16), Mode: driver.Exclusive.String(),
	})
	return string(text)
}

// file stores a claim and finds its place. If much of its lease has passed, a
// keep-alive goes out beside it and must succeed too.
func (d *etcdDriver) file(ctx context.Context, c *claim, r driver.Request) (driver.State, error) {
	sent := time.Now()
	d.mu.Lock()
	l, repeated := c.lease, c.rev != 0
	join := repeated || l.aged(sent)
	f := filing{
		claim: c, line: d.lineOf(c.key), bar: d.barKey(c.id), lease: l.id, text: c.text, rev: c.rev,
		wait: r.Wait, busy: d.lines[c.key] != nil,
	}
	if f.text == "" {
		f.text = c.value(r.Info)
	}
	d.mu.Unlock()
	var alive chan error
	if join {
		alive = make(chan error, 1)
		d.work.Go(func() { alive <- d.keepAlive(ctx, l) })
	}
	p, err := d.submit(ctx, f)
	if errors.Is(err, ErrNoSpace) {
		err = d.withdraw(ctx, f, err)
	}
	if err != nil {
		return driver.State{}, err
	}
	if join && p.phase != driver.Gone {
		switch err := <-alive; {
		case errors.Is(err, errLeaseGone):
			return driver.State{}, err
		case err != nil:
			return driver.State{}, stored(err)
		}
	}
	return d.settle(c, p, sent), nil
}

// withdraw takes back a claim that the server refused for want of space: the transaction that
// meets the quota is carried out, and refused all the same. A delete still works then. One that is
// not answered may yet arrive, so the claim is not submitted again.
func (d *etcdDriver) withdraw(ctx context.Context, f filing, refused error) error {
	deleted := make(chan error, 1)
	d.work.Go(func() { // also if the caller leaves
		limited, cancel := context.WithTimeout(d.ctx, withdrawTimeout)
		defer cancel()
		_, err := d.client.Txn(limited).If(clientv3.Compare(clientv3.Value(f.own), "=", f.text)).Then(clientv3.OpDelete(f.own)).Commit()
		deleted <- err
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
	d.burn(f.claim)
	return driver.Classify(fmt.Errorf("%w, and the claim was not taken back: %w", refused, err), driver.Ambiguous)
}

// burn keeps a claim from being submitted again: something may yet arrive that deletes it.
func (d *etcdDriver) burn(c *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.burnt = true
}

func (d *etcdDriver) isBurnt(c *claim) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.burnt
}

// withdrawTimeout is how long that is tried.
const withdrawTimeout = time.Second

// A filing is what is sent for a claim.
type filing struct {
	*claim
	line, bar string
	lease     clientv3.LeaseID
	text      string
	rev       int64 // of the claim's creation, if it is filed again
	wait      bool
	busy      bool // somebody of ours waits for the key, or did lately
}

func (f *filing) put() clientv3.Op { return clientv3.OpPut(f.own, f.text, clientv3.WithLease(f.lease)) }

// filed reports whether what is at the claim's key is the claim.
func (f *filing) filed(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) > 0 && (kvs[0].CreateRevision == f.rev || string(kvs[0].Value) == f.text)
}

// submit sends a claim: in the hope that the key is free, which costs least if it
// is, or at once to the end of the line.
func (d *etcdDriver) submit(ctx context.Context, f filing) (position, error) {
	if f.wait && f.busy {
		return d.queue(ctx, f)
	}
	resp, err := d.kv.Txn(ctx).
		If(created(f.bar, 0), clientv3.Compare(clientv3.CreateRevision(f.line).WithPrefix(), "=", 0)).
		Then(f.put()).
		Commit()
	if err != nil {
		return position{}, classify(err)
	}
	if rev := resp.Header.Revision; resp.Succeeded {
		return position{phase: driver.Held, rev: rev, asOf: rev}, nil
	}
	if f.wait {
		return d.queue(ctx, f)
	}
	return d.try(ctx, f)
}

// try finds out why a claim that will not wait was not stored.
func (d *etcdDriver) try(ctx context.Context, f filing) (position, error) {
	resp, err := d.kv.Txn(ctx).Then(clientv3.OpGet(f.own), clientv3.OpGet(f.bar, clientv3.WithCountOnly()), nearest(f.line, 0)).Commit()
	if err != nil {
		return position{}, classify(err)
	}
	own, bar, others := resp.Responses[0].GetResponseRange(), resp.Responses[1].GetResponseRange(), resp.Responses[2].GetResponseRange()
	switch claims, sure := sift(f.line, others.Kvs, false); {
	case f.filed(own.Kvs):
		return d.lookStored(ctx, f.claim, own.Kvs[0].CreateRevision)
	case bar.Count > 0, sure && len(claims) > 0:
		return position{phase: driver.Gone}, nil
	}
	return d.tryAmongStrangers(ctx, f)
}

// tryAmongStrangers files a claim that will not wait where what lies below the
// lock's name may be other data: it queues, and leaves if it is not the first.
func (d *etcdDriver) tryAmongStrangers(ctx context.Context, f filing) (position, error) {
	p, err := d.queue(ctx, f)
	if err != nil || p.phase != driver.Queued {
		return p, err
	}
	_, err = d.client.Txn(ctx).If(created(f.own, p.rev)).Then(clientv3.OpDelete(f.own)).Commit()
	if err != nil {
		d.burn(f.claim)
		return position{}, stored(err)
	}
	return position{phase: driver.Gone}, nil
}

// queue files a claim at the end of the line.
func (d *etcdDriver) queue(ctx context.Context, f filing) (position, error) {
	resp, err := d.kv.Txn(ctx).
		If(created(f.bar, 0), created(f.own, 0)).
		Then(f.put(), nearest(f.line, 0)).
		Else(clientv3.OpGet(f.own)).
		Commit()
	if err != nil {
		return position{}, classify(err)
	}
	rev := resp.Header.Revision
	if !resp.Succeeded {
		if own := resp.Responses[0].GetResponseRange().Kvs; f.filed(own) {
			return d.lookStored(ctx, f.claim, own[0].CreateRevision)
		}
		return position{phase: driver.Gone}, nil // barred
	}
	found := resp.Responses[1].GetResponseRange()
	p, sure := place(f.own, f.line, rev, found.Kvs, false)
	if !sure {
		return d.lookStored(ctx, f.claim, rev)
	}
	if p.asOf = rev; p.ahead > 0 {
		p.ahead = max(int(found.Count)-1, p.ahead)
	}
	return p, nil
}

// lookStored is look for a claim that was filed just now.
func (d *etcdDriver) lookStored(ctx context.Context, c *claim, rev int64) (position, error) {
	p, err := d.look(ctx, c, rev)
	return p, stored(err)
}

// stored marks the error of a call after the claim was stored: whatever it says of
// that call, the claim is there.
func stored(err error) error {
	return driver.Classify(hide.From(err, driver.ErrUnavailable), driver.Ambiguous)
}

// created compares the revision of a key's creation; that of one that is not there
// is 0.
func created(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// settle notes what was learned of a claim, and says it as the engine wants it.
// sent is when the call was sent that learned it.
func (d *etcdDriver) settle(c *claim, p position, sent time.Time) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[c.id] != c || p.phase == driver.Gone {
		d.forget(c)
		return driver.State{Phase: driver.Gone}
	}
	if c.swept {
		return driver.State{Phase: driver.Gone} // it is forgotten when the sweep has succeeded
	}
	d.stand(c, p)
	if c.seen = sent; c.phase == driver.Held {
		c.span = c.lease.ttl
		return driver.State{Phase: driver.Held, Token: c.rev, Until: d.until(c)}
	}
	c.span = driver.Heartbeat(c.lease.ttl)
	until := d.until(c)
	if beat := sent.Add(c.span); beat.Before(until) {
		until = beat
	}
	return driver.State{Phase: driver.Queued, Ahead: c.ahead, Until: until}
}

// until is when the server may drop a claim at the earliest.
func (d *etcdDriver) until(c *claim) time.Time {
	end := c.lease.end()
	if o := c.other; o != nil && o.end().Before(end) {
		return o.end()
	}
	return end
}
