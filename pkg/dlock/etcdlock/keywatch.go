package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A keyWatcher reports at once when another party deletes the key of a held claim: a renewal would
// find out up to a third of the TTL later, and a claim that is not renewed never would. All keys
// are watched over one stream, with one watch each: the claims of a process do not form a key
// range, and a range over all locks would deliver the releases of every process.
type keyWatcher struct {
	*etcdDriver
	open    func(context.Context) (watchStream, error)
	backOff backOff
	wake    chan struct{} // buffered by one

	// Under etcdDriver.mu.
	active bool     // there is a session, which is to hear of new holders
	fresh  []*claim // held since the session last looked
}

const (
	// watchAfter is how long a lock must be held before its key is watched: most locks are released
	// sooner, and watching them would cost more than the locks themselves.
	watchAfter = 10 * time.Millisecond
	// watchStays is how long a watch outlives its claim, because keys are reused.
	watchStays = 3 * time.Second
	// watchSilence is how long a stream may be silent before the session asks it for progress, and
	// then again before the stream is replaced.
	watchSilence = 5 * time.Second
	// watchBegins is how long a new stream may take to send its first response.
	watchBegins = 2 * time.Second
)

var errWatchSilent = errors.New("the watch stream does not answer")

// hold adds a claim that is held from now on. The caller holds mu.
func (w *keyWatcher) hold(c *claim) {
	if w.active {
		w.fresh = append(w.fresh, c)
		if len(w.fresh) > 1 {
			return // the session knows already
		}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run keeps a session while there is a key to watch.
func (w *keyWatcher) run() {
	for w.ctx.Err() == nil {
		if !w.needed() {
			select {
			case <-w.wake:
				sleep(w.ctx, watchAfter)
			case <-w.ctx.Done():
			}
			continue
		}
		if !sleep(w.ctx, w.backOff.wait()) {
			return
		}
		if w.client.Username != "" {
			w.alive.opened(w.ctx) // to authenticate for both at once takes twice as long
		}
		err := w.session()
		w.mu.Lock()
		w.active, w.fresh = false, nil
		w.mu.Unlock()
		w.backOff.failed()
		if w.ctx.Err() == nil {
			w.log.Debug("the watch of held keys was interrupted", "error", err)
		}
	}
}

func (w *keyWatcher) needed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.claims {
		if c.phase == driver.Held {
			return true
		}
	}
	return false
}

// session opens a stream and watches the held keys until the stream breaks.
func (w *keyWatcher) session() error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	late := time.AfterFunc(w.openTimeout(w.backOff.failures), cancel)
	stream, err := w.open(ctx)
	if !late.Stop() && err == nil {
		err = errWatchSilent
	}
	if err != nil {
		return err
	}
	s := &watchSession{
		keyWatcher: w, ctx: ctx, cancel: cancel, stream: stream,
		byKey: map[string]*keyWatch{}, byID: map[int64]*keyWatch{}, unread: map[string]bool{}, checked: make(chan []string, 1),
	}
	inbox, ended := &watchInbox{news: make(chan struct{}, 1)}, make(chan error, 1)
	w.work.Go(func() { ended <- inbox.receive(stream) })
	return s.run(inbox, ended)
}

// A watchInbox accepts every response at once: if the receiver waited for the session while the
// session sends, the server would stop reading.
type watchInbox struct {
	mu   sync.Mutex
	got  []*pb.WatchResponse
	news chan struct{} // buffered by one
}

func (i *watchInbox) receive(stream watchStream) error {
	for {
		resp, err := stream.receive()
		if err != nil {
			return err
		}
		i.mu.Lock()
		i.got = append(i.got, resp)
		i.mu.Unlock()
		select {
		case i.news <- struct{}{}:
		default:
		}
	}
}

func (i *watchInbox) take() []*pb.WatchResponse {
	i.mu.Lock()
	defer i.mu.Unlock()
	got := i.got
	i.got = nil
	return got
}
