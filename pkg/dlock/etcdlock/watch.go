package etcdlock

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A queueWatcher delivers the grants of a queue to its claims.
type queueWatcher struct {
	*etcdDriver
	queue *waitQueue
	watch watch
	empty time.Time // since when there is no waiter

	looked int64  // the revision of this driver's claim that was looked up last
	served *claim // the permit for which deletions are counted
	vain   time.Time
}

// A watch reports when a key is deleted, or all keys of a queue. It starts at the current revision: etcd delays a watcher
// that starts in the past by up to 100 ms.
type watch struct {
	key    string
	events clientv3.WatchChan
	cancel context.CancelFunc
	since  int64 // the revision after which it misses nothing; 0 until it has started
	gone   int64 // the last revision at which the key was deleted, or one of the keys

	deleted []deletion // of all keys of a queue
}

// A deletion is that of a key which was created at one revision and deleted at another.
type deletion struct{ created, at int64 }

// hasDeleted reports whether the key that was created at rev was deleted.
func (w *watch) hasDeleted(rev int64) bool {
	return slices.ContainsFunc(w.deleted, func(d deletion) bool { return d.created == rev })
}

// freed returns how many keys were deleted after asOf of those that were created before rev.
func (w *watch) freed(rev, asOf int64) int {
	w.deleted = slices.DeleteFunc(w.deleted, func(d deletion) bool { return d.at <= asOf || d.created >= rev })
	return len(w.deleted)
}

var errWatchEnded = errors.New("the watch has ended")

// run serves the queue until it has been empty for a while. Each iteration looks at the first claim
// and takes one step for it, or waits.
func (s *queueWatcher) run() {
	defer s.stop()
	pause := 10 * time.Millisecond
	for s.ctx.Err() == nil {
		c, p := s.first()
		var err error
		switch {
		case c != nil:
			err = s.serve(c, p)
		case s.over():
			return
		default:
			err = s.next(time.Until(s.empty.Add(queueStays)))
		}
		if err == nil {
			pause = 10 * time.Millisecond
			continue
		}
		s.stop()
		s.log.Debug("waiting for a key was interrupted", "key", s.queue.key, "error", err)
		if !sleep(s.ctx, pause) {
			return
		}
		pause = min(2*pause, time.Second)
	}
}

// first returns the claim to serve next, and its position.
func (s *queueWatcher) first() (*claim, position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue.waiting) == 0 {
		if s.empty.IsZero() {
			s.empty = time.Now()
		}
		return nil, position{}
	}
	s.empty = time.Time{}
	c := s.queue.waiting[0]
	return c, c.position
}

// over closes the queue if it has been empty for long enough.
func (s *queueWatcher) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue.waiting) > 0 || time.Since(s.empty) < queueStays {
		return false
	}
	delete(s.queues, s.queue.key)
	return true
}

// serve takes one step for a claim. A claim behind another claim of this driver needs no watch: the
// driver learns of that one's end first. A renewal finds any other change to it.
func (s *queueWatcher) serve(c *claim, p position) error {
	if p.before == "" {
		return s.servePermit(c, p)
	}
	if s.isOurs(s.queue.prefix, p.before) {
		if s.known(p.before, p.beforeRev) {
			return s.next(0)
		}
		if s.looked != p.beforeRev {
			s.looked = p.beforeRev
			return s.advance(c, 0)
		} // it is there, and its submission was not answered
	}
	if s.watch.key != p.before {
		s.stop()
		s.start(p.before)
	}
	switch w := &s.watch; {
	case w.since == 0:
		return s.next(0)
	case w.gone > p.asOf:
		return s.advance(c, w.gone)
	case w.since > p.asOf:
		return s.confirm(c, p)
	}
	return s.next(0)
}

// servePermit takes one step for a permit that waits for other permits only: for any of them, so it counts
// their deletions.
func (s *queueWatcher) servePermit(c *claim, p position) error {
	if s.watch.key != s.queue.prefix {
		s.stop()
		s.start(s.queue.prefix, clientv3.WithPrefix(), clientv3.WithPrevKV())
	}
	switch w := &s.watch; {
	case s.served != c: // deletions were counted for another claim
		s.served = c
		return s.advance(c, 0)
	case w.since == 0:
		return s.next(0)
	case w.since > p.asOf || w.hasDeleted(p.rev): // deletions were missed
		return s.advance(c, 0)
	case p.ahead-w.freed(p.rev, p.asOf) < c.kind.limit:
		return s.advance(c, w.gone)
	}
	return s.next(0)
}

func (s *queueWatcher) start(key string, opts ...clientv3.OpOption) {
	ctx, cancel := context.WithCancel(s.ctx)
	opts = append(opts, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	s.watch = watch{key: key, cancel: cancel, events: s.client.Watch(ctx, key, opts...)}
}

func (s *queueWatcher) stop() {
	if s.watch.cancel != nil {
		s.watch.cancel()
	}
	s.watch = watch{}
}

// next waits for a change of the queue, an event of the watch, or the end of within, if that is not
// 0.
func (s *queueWatcher) next(within time.Duration) error {
	var late <-chan time.Time
	if within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-s.ctx.Done():
	case <-s.queue.changed:
	case <-late:
	case resp, ok := <-s.watch.events:
		if !ok {
			return errWatchEnded
		}
		if resp.Created {
			s.watch.since = resp.Header.Revision
		}
		for _, ev := range resp.Events {
			s.watch.gone = max(s.watch.gone, ev.Kv.ModRevision)
			if s.watch.key == s.queue.prefix && s.served != nil {
				s.watch.deleted = append(s.watch.deleted, deletion{ev.PrevKv.GetCreateRevision(), ev.Kv.ModRevision})
			}
		}
		if len(s.watch.deleted) > maxDeletions { // counted for nobody
			s.watch.deleted, s.served = nil, nil
		}
		return resp.Err()
	}
	return nil
}

// maxDeletions is how many deletions are kept.
const maxDeletions = 4096

// lookTimeout is how long a look without a caller may take.
const lookTimeout = time.Second

// confirm checks whether the claim before c was deleted after it was last seen and before the watch
// started.
func (s *queueWatcher) confirm(c *claim, p position) (err error) {
	defer recoverPanic(&err)
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	resp, err := s.client.Get(ctx, p.before, clientv3.WithKeysOnly(), clientv3.WithSerializable())
	if err != nil || resp.Header.Revision < s.watch.since { // a member that lags behind
		if resp, err = s.client.Get(ctx, p.before, clientv3.WithKeysOnly()); err != nil {
			return err
		}
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != p.beforeRev {
		return s.advance(c, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.before == p.before && c.beforeRev == p.beforeRev {
		c.asOf = max(c.asOf, resp.Header.Revision)
	}
	return nil
}

// advance looks up the position of a claim again, after the one before it was deleted at rev, and
// notifies the engine if the claim is first or gone.
func (s *queueWatcher) advance(c *claim, rev int64) error {
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	s.mu.Lock()
	since := c.rev
	s.mu.Unlock()
	var p position
	var err error
	if rev > 0 { // any member that has seen the deletion can answer, without asking the others
		p, err = s.look(ctx, c, since, clientv3.WithSerializable())
	}
	if rev == 0 || err != nil || p.phase != driver.Held || p.asOf < rev {
		if p, err = s.look(ctx, c, since); err != nil {
			return err
		}
	}
	s.notify(c, p)
	if p.phase == driver.Held && c.kind.mode != driver.Exclusive {
		return s.grantOthers(ctx, c.kind)
	}
	return nil
}

// grantOthers grants the lock to the next waiters of this driver that hold it as well, after a reader or a
// permit was granted: with one call for all of them. What it cannot tell, a look at each of them does.
func (s *queueWatcher) grantOthers(ctx context.Context, k kind) (err error) {
	defer recoverPanic(&err)
	var waiting []*claim
	s.mu.Lock()
	for _, c := range s.queue.waiting {
		if c.kind != k || c.rev == 0 {
			break
		}
		waiting = append(waiting, c)
	}
	var first, last int64
	if len(waiting) > 0 {
		first, last = waiting[0].rev, waiting[len(waiting)-1].rev
	}
	s.mu.Unlock()
	if len(waiting) < 2 || time.Since(s.vain) < vainPause {
		return nil
	}
	var ops []clientv3.Op
	oldest := []clientv3.OpOption{clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithMaxCreateRev(last), clientv3.WithKeysOnly()}
	for _, r := range k.others(s.queue.prefix) {
		ops = append(ops, clientv3.OpGet(r[0], append(slices.Clone(oldest), clientv3.WithRange(r[1]), clientv3.WithLimit(near))...))
	}
	same := append(slices.Clone(oldest), clientv3.WithPrefix(), clientv3.WithLimit(maxOthers))
	if k.mode == driver.Shared {
		same = append(same, clientv3.WithMinCreateRev(first)) // a permit counts those before it
	}
	resp, err := s.client.Txn(ctx).Then(append(ops, clientv3.OpGet(s.queue.prefix+k.part(), same...))...).Commit()
	if err != nil {
		return err
	}
	end, granted := int64(math.MaxInt64), 0 // of the claims before the first of another kind
	for _, r := range resp.Responses[:len(ops)] {
		kvs := r.GetResponseRange().Kvs
		first := slices.IndexFunc(kvs, func(kv *mvccpb.KeyValue) bool {
			claims, sure := sift(s.queue.prefix, []*mvccpb.KeyValue{kv}, false)
			return !sure || len(claims) > 0 // what may be one counts as one
		})
		switch {
		case first >= 0:
			end = min(end, kvs[first].CreateRevision)
		case len(kvs) == near:
			s.vain = time.Now()
			return nil
		}
	}
	stored := map[string]int64{}
	permits, _ := sift(s.queue.prefix, resp.Responses[len(ops)].GetResponseRange().Kvs, true)
	for i, kv := range permits {
		if kv.CreateRevision < end && (k.mode == driver.Shared || i < k.limit) {
			stored[string(kv.Key)] = kv.CreateRevision
		}
	}
	for _, c := range waiting {
		s.mu.Lock()
		rev := c.rev
		s.mu.Unlock()
		if stored[c.own] != rev {
			break
		}
		granted++
		s.notify(c, position{phase: driver.Held, rev: rev, asOf: resp.Header.Revision})
	}
	if granted == 0 {
		s.vain = time.Now()
	}
	return nil
}

const (
	// maxOthers is how many claims grantOthers reads.
	maxOthers = 4096
	// vainPause is how long grantOthers is not tried again after it was in vain.
	vainPause = 200 * time.Millisecond
)
