package etcdlock

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A server brings the grants of a line to its claims.
type server struct {
	*etcdDriver
	line  *line
	watch watch
	empty time.Time // since when nobody waits

	looked int64 // the claim of ours, by its revision, that was looked for last
}

// A watch tells when one key is deleted. It begins now, not in the past: there,
// etcd makes a watcher wait for up to 100 ms.
type watch struct {
	key    string
	events clientv3.WatchChan
	cancel context.CancelFunc
	since  int64 // the revision after which it misses nothing; 0 until it stands
	gone   int64 // the last revision at which the key was deleted
}

var errWatchEnded = errors.New("the watch has ended")

// run serves until the line has been empty for a while. Each turn looks at the
// first claim and does one thing for it, or waits.
func (s *server) run() {
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
			err = s.next(time.Until(s.empty.Add(lineStays)))
		}
		if err == nil {
			pause = 10 * time.Millisecond
			continue
		}
		s.stop()
		s.log.Debug("waiting for a key was interrupted", "key", s.line.key, "error", err)
		if !sleep(s.ctx, pause) {
			return
		}
		pause = min(2*pause, time.Second)
	}
}

// first is the claim that is served next, and where it stands.
func (s *server) first() (*claim, position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line.waiting) == 0 {
		if s.empty.IsZero() {
			s.empty = time.Now()
		}
		return nil, position{}
	}
	s.empty = time.Time{}
	c := s.line.waiting[0]
	return c, c.position
}

// over closes the line if it has been empty for long enough.
func (s *server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line.waiting) > 0 || time.Since(s.empty) < lineStays {
		return false
	}
	delete(s.lines, s.line.key)
	return true
}

// serve takes a claim a step further. Who stands behind a claim of ours needs no
// watch: we hear of its end first. Whatever else happens to that one, a renewal
// finds.
func (s *server) serve(c *claim, p position) error {
	if s.isOurs(s.line.prefix, p.before) {
		if s.known(p.before, p.beforeRev) {
			return s.next(0)
		}
		if s.looked != p.beforeRev {
			s.looked = p.beforeRev
			return s.advance(c, 0)
		} // it is there, and its filing was not answered
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

func (s *server) start(key string) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.watch = watch{key: key, cancel: cancel, events: s.client.Watch(ctx, key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())}
}

func (s *server) stop() {
	if s.watch.cancel != nil {
		s.watch.cancel()
	}
	s.watch = watch{}
}

// next waits for news: of the line, from the watch, or, if that is not 0, until
// some time has passed.
func (s *server) next(within time.Duration) error {
	var late <-chan time.Time
	if within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-s.ctx.Done():
	case <-s.line.changed:
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

// lookBound is how long a look on behalf of nobody may take.
const lookBound = time.Second

// confirm looks whether the claim before c went between when it was last seen and
// when the watch stood.
func (s *server) confirm(c *claim, p position) error {
	ctx, cancel := context.WithTimeout(s.ctx, lookBound)
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

// advance looks again where a claim stands, after the one before it went at rev,
// and tells the engine if it is the first or gone.
func (s *server) advance(c *claim, rev int64) error {
	ctx, cancel := context.WithTimeout(s.ctx, lookBound)
	defer cancel()
	s.mu.Lock()
	since := c.rev
	s.mu.Unlock()
	var p position
	var err error
	if rev > 0 { // any member that has seen the deletion can tell, without asking the others
		p, err = s.look(ctx, c, since, clientv3.WithSerializable())
	}
	if rev == 0 || err != nil || p.phase != driver.Held || p.asOf < rev {
		if p, err = s.look(ctx, c, since); err != nil {
			return err
		}
	}
	s.tell(c, p)
	return nil
}
