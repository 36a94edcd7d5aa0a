package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A scriptedWatch records what a session sends.
type scriptedWatch struct {
	watchStream
	sent []string
}

func (w *scriptedWatch) record(format string, args ...any) error {
	w.sent = append(w.sent, fmt.Sprintf(format, args...))
	return nil
}

func (w *scriptedWatch) create(id int64, key string) error { return w.record("create %d %s", id, key) }
func (w *scriptedWatch) drop(id int64) error               { return w.record("drop %d", id) }
func (w *scriptedWatch) askProgress() error                { return w.record("ask") }

// took returns what was sent since the last call.
func (w *scriptedWatch) took() []string {
	sent := w.sent
	w.sent = nil
	return sent
}

// A scriptedKV answers every read with these keys.
type scriptedKV struct {
	clientv3.KV
	kvs []*mvccpb.KeyValue
}

func (s scriptedKV) Do(context.Context, clientv3.Op) (clientv3.OpResponse, error) {
	return (&clientv3.GetResponse{Kvs: s.kvs}).OpResponse(), nil
}

// scriptedSession returns a session whose driver has a claim that is held since revision 5, and the claim.
func scriptedSession(t *testing.T) (*watchSession, *claim, *scriptedWatch) {
	d, c := claimOn(time.Minute)
	c.rev = 5
	d.ctx, d.cancel = context.WithCancel(t.Context())
	t.Cleanup(d.cancel)
	d.keys = keyWatcher{etcdDriver: d, wake: make(chan struct{}, 1)}
	stream := &scriptedWatch{}
	return &watchSession{
		keyWatcher: &d.keys, ctx: d.ctx, cancel: d.cancel, stream: stream,
		byKey: map[string]*keyWatch{}, byID: map[int64]*keyWatch{}, unread: map[string]bool{}, checked: make(chan []string, 1),
		reading: true, heard: time.Now(),
	}, c, stream
}

// watches adds the watch of a key.
func (s *watchSession) watches(key string, id int64) *keyWatch {
	w := &keyWatch{key: key, id: id}
	s.byKey[key], s.byID[id] = w, w
	return w
}

// A stream that is silent is asked for progress once, and is replaced if it stays silent. One without watches is not asked.
func TestSilentStreamIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, stream := scriptedSession(t)
		w := s.watches(c.own, 1)
		for _, step := range []struct {
			after time.Duration
			asks  bool
			err   error
		}{
			{watchSilence - 1, false, nil}, {1, true, nil}, {watchSilence - 1, false, nil}, {1, false, errWatchSilent},
		} {
			time.Sleep(step.after)
			if err := s.askIfSilent(); !errors.Is(err, step.err) || (len(stream.took()) == 1) != step.asks {
				t.Errorf("%v after %v", err, time.Since(s.heard))
			}
		}
		if err := s.take(&pb.WatchResponse{WatchId: 1, Header: &pb.ResponseHeader{}}); err != nil || s.askIfSilent() != nil || len(stream.took()) != 0 {
			t.Errorf("after an answer: %v", err)
		}
		delete(s.byID, w.id)
		time.Sleep(3 * watchSilence)
		if err := s.askIfSilent(); err != nil || len(stream.took()) != 0 || time.Since(s.heard) != 0 {
			t.Errorf("without watches: %v", err)
		}
	})
}

// A watch ends some time after its key had no holder. It stays while a claim holds the key, or may hold it yet.
func TestIdleWatchesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, stream := scriptedSession(t)
		held, vacant := s.watches(c.own, 1), s.watches("k/vacant", 2)
		s.setIdle(held)
		s.setIdle(vacant)
		s.setIdle(vacant)
		drop := func(what string, after time.Duration, left int, want ...string) {
			t.Helper()
			time.Sleep(after)
			err := s.dropIdle()
			if sent := stream.took(); err != nil || !slices.Equal(sent, want) || len(s.idle) != left {
				t.Errorf("%s: %v, %q, and %d are idle, want %q and %d", what, err, sent, len(s.idle), want, left)
			}
		}
		drop("early", watchStays-1, 2)
		drop("in time", 1, 0, "drop 2")
		if s.byKey[c.own] != held || s.byID[1] != held || len(s.byKey) != 1 || len(s.byID) != 1 || held.idle {
			t.Error("the watch of the held key has ended, or the other has not")
		}
		s.setIdle(held)
		c.phase = driver.Queued
		drop("it waits", watchStays, 1)
		c.phase, c.ending = driver.Held, true
		drop("it is being released", watchStays, 1)
		c.ending = false
		drop("it is held", watchStays, 0)
		s.setIdle(held)
		s.forget(c)
		drop("it was released", watchStays, 0, "drop 1")
	})
}

// A server does not say which watch it refuses: it is the first that has not started. What was refused is tried again later.
func TestRefusedWatchIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, stream := scriptedSession(t)
		s.lastID = 4
		s.watches("k/started", 1).since = 7
		s.watches(c.own, 2)
		s.watches("k/next", 3)
		refusal := &pb.WatchResponse{WatchId: -1, Canceled: true, CancelReason: rpctypes.ErrPermissionDenied.Error()}
		if err := s.take(refusal); err != nil || s.byID[2] != nil || s.byKey[c.own] != nil || len(s.byID) != 2 || len(s.byKey) != 2 {
			t.Errorf("%v, and the watches are %v", err, s.byID)
		}
		for i, want := range [][]string{nil, {"create 5 " + c.own}, nil} {
			time.Sleep([]time.Duration{watchRefusedAfter - 1, 1, watchRefusedAfter}[i])
			if err := s.watchRefused(); err != nil || !slices.Equal(stream.took(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		refusal.WatchId = 5 // by its number, although another has not started either
		if err := s.take(refusal); err != nil || s.byID[5] != nil || s.byID[3] == nil {
			t.Errorf("%v, and the watches are %v", err, s.byID)
		}
		c.ending = true
		time.Sleep(watchRefusedAfter)
		if err := s.watchRefused(); err != nil || len(stream.took()) != 0 {
			t.Errorf("a key that is being released is watched: %v", err)
		}
	})
}

// A watch that the server ends stops the session, unless the session has dropped it.
func TestWatchEndedByTheServer(t *testing.T) {
	s, c, _ := scriptedSession(t)
	s.watches(c.own, 1)
	for _, tt := range []struct {
		resp *pb.WatchResponse
		err  error
	}{
		{&pb.WatchResponse{WatchId: 1, Canceled: true}, errWatchEnded},
		{&pb.WatchResponse{WatchId: 2, Canceled: true, Created: true}, errWatchEnded},
		{&pb.WatchResponse{WatchId: 2, Canceled: true}, nil},
		{&pb.WatchResponse{WatchId: 2}, nil},
	} {
		s.asked = true
		if err := s.take(tt.resp); !errors.Is(err, tt.err) || s.asked {
			t.Errorf("%v: %v", tt.resp, err)
		}
	}
}

// A deletion after the grant is a loss, and an older one is not. A key whose watch has started is read.
func TestDeletionsThatAreLosses(t *testing.T) {
	for _, tt := range []struct {
		kind mvccpb.Event_EventType
		rev  int64
		lost bool
	}{{mvccpb.Event_DELETE, 6, true}, {mvccpb.Event_DELETE, 5, false}, {mvccpb.Event_PUT, 6, false}} {
		s, c, _ := scriptedSession(t)
		w := s.watches(c.own, 1)
		resp := &pb.WatchResponse{WatchId: 1, Header: &pb.ResponseHeader{Revision: 8}, Events: []*mvccpb.Event{{Type: tt.kind, Kv: &mvccpb.KeyValue{ModRevision: tt.rev}}}}
		if err := s.take(resp); err != nil {
			t.Error(err)
		}
		deleted := tt.kind == mvccpb.Event_DELETE
		if lost := len(s.losses.take()) == 1; lost != tt.lost || (s.claims[c.id] == nil) != tt.lost || (w.gone == tt.rev) != deleted || w.idle != deleted {
			t.Errorf("%v: lost %v, the watch is %+v", tt, lost, w)
		}
		if s.unread[w.key] || w.since != 0 {
			t.Error("a watch starts with an event")
		}
		if err := s.take(&pb.WatchResponse{WatchId: 1, Created: true, Header: &pb.ResponseHeader{Revision: 9}}); err != nil || w.since != 9 || !s.unread[w.key] {
			t.Errorf("%v, the watch is %+v", err, w)
		}
	}
}

// A key that is held again has its watch already. What that watch may have missed is read, and what it has seen is a loss.
func TestKeyIsWatchedAgain(t *testing.T) {
	for _, tt := range []struct {
		since, gone  int64
		unread, lost bool
	}{{4, 0, false, false}, {5, 5, false, false}, {6, 0, true, false}, {4, 6, false, true}, {0, 0, false, false}} {
		s, c, stream := scriptedSession(t)
		w := s.watches(c.own, 1)
		w.since, w.gone = tt.since, tt.gone
		if err := s.watchKeys([]*claim{c}); err != nil || len(stream.took()) != 0 {
			t.Errorf("%+v: %v", tt, err)
		}
		if lost := len(s.losses.take()) == 1; lost != tt.lost || s.unread[c.own] != tt.unread {
			t.Errorf("%+v: lost %v, to be read %v", tt, lost, s.unread[c.own])
		}
	}
	s, c, stream := scriptedSession(t)
	released, other := *c, &claim{id: "other", own: "k/other"}
	c.ending = true
	if err := s.watchKeys([]*claim{&released, c, other}); err != nil || len(stream.took()) != 0 {
		t.Errorf("keys without a holder are watched: %v", err)
	}
	c.ending = false
	if err := s.begin(); err != nil || !s.active || !slices.Equal(stream.took(), []string{"create 1 " + c.own}) || s.byID[1] != s.byKey[c.own] {
		t.Errorf("a session does not watch what is held: %v", err)
	}
}

// Keys that may have been deleted are read: a holder without its key is lost, and a key without a holder has a watch that
// nothing needs.
func TestKeysAreChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		kvs    []*mvccpb.KeyValue
		ending bool
		lost   bool
		vacant bool
	}{
		"there":          {[]*mvccpb.KeyValue{{CreateRevision: 5}}, false, false, false},
		"gone":           {nil, false, true, true},
		"of another":     {[]*mvccpb.KeyValue{{CreateRevision: 6}}, false, true, true},
		"being released": {nil, true, false, true},
	} {
		s, c, _ := scriptedSession(t)
		s.client = &clientv3.Client{KV: scriptedKV{kvs: tt.kvs}}
		c.ending = tt.ending
		vacant := s.check(t.Context(), []string{c.own, "k/unknown"})
		if lost := len(s.losses.take()) == 1; lost != tt.lost || slices.Contains(vacant, c.own) != tt.vacant || !slices.Contains(vacant, "k/unknown") {
			t.Errorf("%s: lost %v, vacant %q", name, lost, vacant)
		}
		w := s.watches("k/unknown", 2)
		s.unread["k/later"] = true
		s.read(nil)
		if len(s.unread) != 1 {
			t.Errorf("%s: two reads at a time", name)
		}
		s.read(vacant)
		<-s.checked
		if !w.idle || len(s.unread) != 0 || !s.reading {
			t.Errorf("%s: idle %v, %d to be read", name, w.idle, len(s.unread))
		}
	}
}
