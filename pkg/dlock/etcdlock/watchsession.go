package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// watchRefusedAfter is the pause before a watch that the user may not have is tried again.
const watchRefusedAfter = 5 * time.Second

// A watchSession watches keys over one stream. One goroutine runs it.
type watchSession struct {
	*keyWatcher
	ctx    context.Context
	cancel context.CancelFunc
	stream watchStream

	byKey   map[string]*keyWatch
	byID    map[int64]*keyWatch
	lastID  int64
	recent  []*claim        // held since before the last look
	idle    []*keyWatch     // whose claims have gone, the oldest first
	unread  map[string]bool // keys that may have been deleted before their watch started
	reading bool
	checked chan []string // buffered by one: reading has ended, and these have no holder
	refused time.Time     // when the user was last found not to have the right to a watch; zero: never
	heard   time.Time
	asked   bool // for progress
}

// A keyWatch watches one key for its deletion. It starts at the current revision, because etcd may
// delay a watch from the past by 100 ms. A read finds a deletion that happened before the watch
// started.
type keyWatch struct {
	key       string
	id        int64
	since     int64 // the revision after which it misses nothing; 0 until it has started
	gone      int64 // the last revision at which the key was deleted
	idle      bool  // listed as such
	idleSince time.Time
}

func (s *watchSession) run(inbox *watchInbox, ended <-chan error) error {
	// A key is watched from the beginning, so a response is due.
	s.asked, s.heard = true, time.Now().Add(watchBegins-2*watchSilence)
	if err := s.begin(); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var look <-chan time.Time
	for {
		var err error
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case err = <-ended:
			return err
		case <-inbox.news:
			err = s.takeAll(inbox.take())
		case <-s.wake:
			if look == nil {
				look = time.After(watchAfter)
			}
		case <-look:
			look = nil
			if err = s.watchAged(); len(s.recent) > 0 {
				look = time.After(watchAfter)
			}
		case vacant := <-s.checked:
			s.read(vacant)
		case <-tick.C:
			err = errors.Join(s.dropIdle(), s.askIfSilent(), s.watchRefused())
		}
		if err != nil {
			return err
		}
	}
}

// begin watches every held key.
func (s *watchSession) begin() error {
	var held []*claim
	s.mu.Lock()
	s.active, s.fresh = true, nil
	for _, c := range s.claims {
		if c.phase == driver.Held && !c.ending {
			held = append(held, c)
		}
	}
	s.mu.Unlock()
	return s.watchKeys(held)
}

// watchAged watches the claims that were already held at the last look and still are.
func (s *watchSession) watchAged() error {
	aged := s.recent
	s.mu.Lock()
	s.recent, s.fresh = s.fresh, nil
	s.mu.Unlock()
	return s.watchKeys(aged)
}

// watchKeys makes sure that the keys of these claims are watched without a gap.
func (s *watchSession) watchKeys(claims []*claim) error {
	var create []*keyWatch
	s.mu.Lock()
	for _, c := range claims {
		if s.claims[c.id] != c || c.ending {
			continue
		}
		switch w := s.byKey[c.own]; {
		case w == nil:
			s.lastID++
			w = &keyWatch{key: c.own, id: s.lastID}
			s.byKey[w.key], s.byID[w.id] = w, w
			create = append(create, w)
		case w.gone > c.rev:
			s.lose(c, w.gone)
		case w.since > c.rev:
			s.unread[w.key] = true
		} // else it is read when its watch has started, or was already watched
	}
	s.mu.Unlock()
	for _, w := range create {
		if err := s.send(func() error { return s.stream.create(w.id, w.key) }); err != nil {
			return err
		}
	}
	s.read(nil)
	return nil
}

// send makes a call that would block if the member has stopped reading.
func (s *watchSession) send(call func() error) error {
	late := time.AfterFunc(watchSilence, s.cancel)
	defer late.Stop()
	return call()
}

// takeAll processes the received responses, and then reads the keys to be checked in one batch.
func (s *watchSession) takeAll(responses []*pb.WatchResponse) error {
	for _, resp := range responses {
		if err := s.take(resp); err != nil {
			return err
		}
	}
	s.read(nil)
	return nil
}

func (s *watchSession) take(resp *pb.WatchResponse) error {
	s.heard, s.asked = time.Now(), false
	w := s.byID[resp.WatchId]
	if resp.Canceled && strings.Contains(resp.CancelReason, rpctypes.ErrPermissionDenied.Error()) {
		s.refuse(w)
		return nil
	}
	if resp.Canceled && (resp.Created || w != nil) { // otherwise this session dropped it
		return fmt.Errorf("%w: %s", errWatchEnded, resp.CancelReason)
	}
	if w == nil {
		return nil
	}
	if resp.Created {
		s.backOff.succeeded()
		w.since = resp.Header.Revision
		s.unread[w.key] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range resp.Events {
		if ev.Type == mvccpb.Event_DELETE {
			s.deleted(w, ev.Kv.ModRevision)
		}
	}
	return nil
}

// refuse forgets a watch that the user may not have: the others continue. A server does not say which one it is, but starts
// them in order.
func (s *watchSession) refuse(w *keyWatch) {
	if w == nil {
		for _, other := range s.byID {
			if other.since == 0 && (w == nil || other.id < w.id) {
				w = other
			}
		}
	}
	if w != nil {
		delete(s.byKey, w.key)
		delete(s.byID, w.id)
		s.refused = time.Now()
	}
}

// watchRefused tries again to watch what the user was not permitted to watch.
func (s *watchSession) watchRefused() error {
	if s.refused.IsZero() || time.Since(s.refused) < watchRefusedAfter {
		return nil
	}
	s.refused = time.Time{}
	var unwatched []*claim
	s.mu.Lock()
	for _, c := range s.claims {
		if c.phase == driver.Held && !c.ending && s.byKey[c.own] == nil {
			unwatched = append(unwatched, c)
		}
	}
	s.mu.Unlock()
	return s.watchKeys(unwatched)
}

// deleted processes the deletion of a key, which this driver may have done itself. The caller holds
// mu.
func (s *watchSession) deleted(w *keyWatch, rev int64) {
	w.gone = max(w.gone, rev)
	if c := s.owns[w.key]; c != nil && c.phase == driver.Held && c.rev < rev {
		s.lose(c, rev)
	}
	s.setIdle(w)
}

func (s *watchSession) setIdle(w *keyWatch) {
	w.idleSince = time.Now()
	if !w.idle {
		w.idle = true
		s.idle = append(s.idle, w)
	}
}

// dropIdle ends the watches that had no holder for a while.
func (s *watchSession) dropIdle() error {
	for range len(s.idle) {
		w := s.idle[0]
		s.idle = s.idle[1:]
		if time.Since(w.idleSince) < watchStays { // its key was used again
			s.idle = append(s.idle, w)
			continue
		}
		w.idle = false
		s.mu.Lock()
		c := s.owns[w.key]
		held := c != nil && c.phase == driver.Held && !c.ending
		s.mu.Unlock()
		switch {
		case held:
		case c != nil: // it may be granted yet
			s.setIdle(w)
		default:
			delete(s.byKey, w.key)
			delete(s.byID, w.id)
			if err := s.send(func() error { return s.stream.drop(w.id) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// askIfSilent finds out whether a silent stream is alive.
func (s *watchSession) askIfSilent() error {
	switch {
	case len(s.byID) == 0:
		s.asked, s.heard = false, time.Now()
		return nil
	case time.Since(s.heard) < watchSilence:
		return nil
	case s.asked && time.Since(s.heard) < 2*watchSilence:
		return nil
	case s.asked:
		return errWatchSilent
	}
	s.asked, s.heard = true, time.Now().Add(-watchSilence)
	return s.send(s.stream.askProgress)
}

// read starts to read the keys that may have been deleted before their watch started, many at once.
// The watches of vacant keys have no holder.
func (s *watchSession) read(vacant []string) {
	if vacant != nil {
		s.reading = false
	}
	for _, key := range vacant {
		if w := s.byKey[key]; w != nil {
			s.setIdle(w)
		}
	}
	if s.reading || len(s.unread) == 0 {
		return
	}
	keys := slices.Collect(maps.Keys(s.unread))
	s.reading = true
	clear(s.unread)
	s.work.Go(func() { s.checked <- s.check(s.ctx, keys) })
}

// check reads whether the holders of these keys still have them, and returns the keys that have no
// holder; the result is not nil.
func (w *keyWatcher) check(ctx context.Context, keys []string) (vacant []string) {
	vacant = []string{}
	for len(keys) > 0 {
		batch := keys[:min(len(keys), maxOps)]
		keys = keys[len(batch):]
		var ops []clientv3.Op
		var holders []*claim
		w.mu.Lock()
		for _, key := range batch {
			if c := w.owns[key]; c != nil && c.phase == driver.Held && !c.ending {
				holders, ops = append(holders, c), append(ops, clientv3.OpGet(key, clientv3.WithKeysOnly()))
			} else {
				vacant = append(vacant, key)
			}
		}
		w.mu.Unlock()
		if len(ops) > 0 {
			vacant = append(vacant, w.checkHolders(ctx, holders, ops)...)
		}
	}
	return vacant
}

// checkHolders reads keys, and retries until it gets an answer. It leaves out those that the user may not read.
func (w *keyWatcher) checkHolders(ctx context.Context, holders []*claim, ops []clientv3.Op) (vacant []string) {
	for again := (backOff{base: 50 * time.Millisecond, most: 2 * time.Second}); ctx.Err() == nil; again.failed() {
		sleep(ctx, again.wait())
		found, err := w.readKeys(ctx, ops)
		if n := len(ops) / 2; isDenied(err) && n > 0 {
			return append(w.checkHolders(ctx, holders[:n], ops[:n]), w.checkHolders(ctx, holders[n:], ops[n:])...)
		}
		if isDenied(err) {
			return nil
		}
		if err != nil {
			continue
		}
		w.mu.Lock()
		for i, c := range holders {
			if len(found[i]) == 0 || found[i][0].CreateRevision != c.rev {
				w.lose(c, 0)
				vacant = append(vacant, c.own)
			}
		}
		w.mu.Unlock()
		break
	}
	return vacant
}

// readKeys reads one key, or several in a transaction.
func (w *keyWatcher) readKeys(ctx context.Context, ops []clientv3.Op) (found [][]*mvccpb.KeyValue, err error) {
	defer recoverPanic(&err)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if len(ops) == 1 {
		resp, err := w.client.Do(ctx, ops[0])
		if err != nil {
			return nil, err
		}
		return [][]*mvccpb.KeyValue{resp.Get().Kvs}, nil
	}
	resp, err := w.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, err
	}
	for _, r := range resp.Responses {
		found = append(found, r.GetResponseRange().Kvs)
	}
	return found, nil
}
