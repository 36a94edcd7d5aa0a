package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

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
	case w.since == 0:
		return s.next(0)
	case w.since > p.asOf || s.served != c: // deletions were missed, or counted for another claim
		s.served = c
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
			if s.watch.key == s.queue.prefix {
				s.watch.deleted = append(s.watch.deleted, deletion{ev.PrevKv.GetCreateRevision(), ev.Kv.ModRevision})
			}
		}
		return resp.Err()
	}
	return nil
}

// lookTimeout is how long a look without a caller may take.
const lookTimeout = time.Second

// confirm checks whether the claim before c was deleted after it was last seen and before the watch
// started.
func (s *queueWatcher) confirm(c *claim, p position) error {
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
	if p.phase == driver.Held && c.kind.mode == driver.Shared {
		return s.grantReaders(ctx)
	}
	return nil
}

// grantReaders grants the lock to all readers of this driver before the first claim of another kind, with
// one call. What it cannot tell, a look at each of them does.
func (s *queueWatcher) grantReaders(ctx context.Context) error {
	var readers []*claim
	s.mu.Lock()
	for _, c := range s.queue.waiting {
		if c.kind.mode != driver.Shared {
			break
		}
		readers = append(readers, c)
	}
	s.mu.Unlock()
	if len(readers) < 2 {
		return nil
	}
	part := s.queue.prefix + kind{mode: driver.Shared}.part()
	oldest := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	resp, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(s.queue.prefix, clientv3.WithRange(part), clientv3.WithKeysOnly(), clientv3.WithLimit(near), oldest),
		clientv3.OpGet(part, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(maxReaders), oldest),
	).Commit()
	if err != nil {
		return err
	}
	others := resp.Responses[0].GetResponseRange().Kvs
	claims, sure := sift(s.queue.prefix, others, false)
	if !sure || (len(claims) == 0 && len(others) == near) {
		return nil
	}
	stored := map[string]int64{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		stored[string(kv.Key)] = kv.CreateRevision
	}
	for _, c := range readers {
		s.mu.Lock()
		rev := c.rev
		s.mu.Unlock()
		if rev == 0 || stored[c.own] != rev || (len(claims) > 0 && claims[0].CreateRevision < rev) {
			return nil
		}
		s.notify(c, position{phase: driver.Held, rev: rev, asOf: resp.Header.Revision})
	}
	return nil
}

// maxReaders is how many readers grantReaders reads.
const maxReaders = 4096
