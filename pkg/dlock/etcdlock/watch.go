package etcdlock

import (
	"context"
	"errors"
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

	looked int64 // the revision of this driver's claim that was looked up last
}

// A watch reports when one key is deleted. It starts at the current revision: etcd delays a watcher
// that starts in the past by up to 100 ms.
type watch struct {
	key    string
	events clientv3.WatchChan
	cancel context.CancelFunc
	since  int64 // the revision after which it misses nothing; 0 until it has started
	gone   int64 // the last revision at which the key was deleted
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

func (s *queueWatcher) start(key string) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.watch = watch{key: key, cancel: cancel, events: s.client.Watch(ctx, key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())}
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
	return nil
}
