package etcdlock

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// near is how many claims a look brings at most.
const near = 17

// nearest reads the keys of the last claims in a line, up to the one that was
// created at rev if that is not 0.
func nearest(line string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(line, append(backwards(rev, opts), clientv3.WithKeysOnly(), clientv3.WithLimit(near))...)
}

// whole reads all of them, with everything.
func whole(line string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(line, backwards(rev, opts)...)
}

func backwards(rev int64, opts []clientv3.OpOption) []clientv3.OpOption {
	opts = append(slices.Clone(opts), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	if rev > 0 {
		opts = append(opts, clientv3.WithMaxCreateRev(rev))
	}
	return opts
}

// place finds a claim in what nearest or whole has read; sure is false if nearest
// does not tell.
func place(own, line string, rev int64, kvs []*mvccpb.KeyValue, whole bool) (p position, sure bool) {
	all, sure := sift(line, kvs, whole)
	sure = sure && (whole || len(kvs) < near || len(all) > 1)
	switch {
	case len(all) == 0 || string(all[0].Key) != own || all[0].CreateRevision != rev:
		return position{phase: driver.Gone}, sure
	case len(all) == 1:
		return position{phase: driver.Held, rev: rev}, sure
	}
	return position{phase: driver.Queued, rev: rev, before: string(all[1].Key), beforeRev: all[1].CreateRevision, ahead: len(all) - 1}, sure
}

// look reads where a claim stands. A serializable look may be answered by a member
// that lags behind, so its "first" is true, and the rest need not be: a claim that
// was once the first stays it.
func (d *etcdDriver) look(ctx context.Context, c *claim, rev int64, opts ...clientv3.OpOption) (position, error) {
	line := d.lineOf(c.key)
	resp, err := d.client.Do(ctx, nearest(line, rev, opts...))
	if err != nil {
		return position{}, classify(err)
	}
	p, sure := place(c.own, line, rev, resp.Get().Kvs, false)
	if !sure {
		if resp, err = d.client.Do(ctx, whole(line, rev, opts...)); err != nil {
			return position{}, classify(err)
		}
		p, _ = place(c.own, line, rev, resp.Get().Kvs, true)
	}
	p.asOf = resp.Get().Header.Revision
	return p, nil
}

// A line is where claims of ours wait for one key. One goroutine serves it: it
// watches the claim before our first one. It stays for a while when nobody waits any
// more: those who contend for a key do so again and again, each behind the same one,
// and a watch that stands already costs nothing.
type line struct {
	key     string
	prefix  string
	waiting []*claim      // by order of creation
	changed chan struct{} // buffered by one
}

// lineStays is how long that is.
const lineStays = 3 * time.Second

func (l *line) poke() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// waits reports whether claims of ours wait for a key. It runs under mu.
func (d *etcdDriver) waits(key string) bool {
	l := d.lines[key]
	return l != nil && len(l.waiting) > 0
}

// known reports whether a claim of ours is there, as far as we know.
func (d *etcdDriver) known(own string, rev int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.owns[own]
	return c != nil && c.rev == rev
}

// stand takes in the position of a claim that is there. It runs under mu.
func (d *etcdDriver) stand(c *claim, p position) {
	if c.phase == driver.Held {
		return // once the first, it stays it
	}
	c.text = ""
	if p.phase == driver.Held || p.asOf >= c.asOf {
		c.position = p
	}
	if p.phase == driver.Held {
		d.leaveLine(c)
		d.keys.hold(c)
		return
	}
	l := d.lines[c.key]
	if l == nil {
		l = &line{key: c.key, prefix: d.lineOf(c.key), changed: make(chan struct{}, 1)}
		d.lines[c.key] = l
		d.work.Go(func() { (&server{etcdDriver: d, line: l}).run() })
	}
	if !slices.Contains(l.waiting, c) {
		i, _ := slices.BinarySearchFunc(l.waiting, c.rev, func(w *claim, rev int64) int { return int(w.rev - rev) })
		l.waiting = slices.Insert(l.waiting, i, c)
	}
	if l.waiting[0] == c {
		l.poke()
	}
}

// leaveLine takes out a claim that does not wait any more, or never did. Somebody
// of ours may have stood behind it. It runs under mu.
func (d *etcdDriver) leaveLine(c *claim) {
	l := d.lines[c.key]
	if l == nil {
		return
	}
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	if len(l.waiting) > 0 {
		l.poke()
	}
}

// tell pushes what became of a claim that waits.
func (d *etcdDriver) tell(c *claim, p position) {
	d.mu.Lock()
	if d.claims[c.id] != c || c.phase == driver.Held || c.swept {
		d.mu.Unlock()
		return
	}
	if p.phase == driver.Gone {
		d.forget(c)
	} else {
		d.stand(c, p)
	}
	d.mu.Unlock()
	if p.phase != driver.Queued {
		d.Send(driver.Event{Key: c.key, ID: c.id, State: driver.State{Phase: p.phase, Token: p.rev}})
	}
}
