// Package dashboard is the lock page: it shows the locks of one or several backends in a browser,
// who holds them, and who waits. A Handler serves the page, its assets and its API.
//
//	page, err := dashboard.New([]dashboard.Source{{Name: "orders", Client: locks}})
//	if err != nil {
//		return err
//	}
//	defer page.Close()
//	http.Handle("/locks/", http.StripPrefix("/locks", page))
//
// The page is read-only unless WithEvict is given. It is served only under the names of this host
// and those of WithAllowedHosts, so that a foreign site cannot reach it by DNS rebinding. See
// docs/dashboard.md.
package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Source is a backend that the page shows.
type Source struct {
	// Name is how the page calls it. It is not empty, has at most 1,000 bytes, and differs from
	// the names of the other sources.
	Name string
	// Client was created with dlock.WithAdmin. The Handler does not close it.
	Client *dlock.Client
	// Holders are further Clients of this process that hold locks on the same backend. The page
	// shows the renewals and losses of Client and Holders. The Handler does not close them.
	Holders []*dlock.Client
}

// A Handler serves the lock page. While the page is open in a browser, one goroutine for each
// source reads the locks; how many browsers there are makes no difference.
type Handler struct {
	settings settings
	sources  []*poller
	routes   http.Handler
	slots    chan struct{} // one for each stream
	started  time.Time
	refused  [len(refusals)]atomic.Int64 // requests, by reason

	closing context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	streams sync.WaitGroup // Add under mu
	waiting map[chan struct{}]struct{}
	rings   *[]ring
}

// New returns a Handler for the sources. It does no I/O. The caller must close the Handler, before
// the Clients of the sources.
func New(sources []Source, opts ...Option) (*Handler, error) {
	s, err := collect(opts)
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("dashboard: %w: no source", dlock.ErrInvalidConfig)
	}
	h := &Handler{
		settings: s, slots: make(chan struct{}, maxStreams), started: time.Now(),
		waiting: map[chan struct{}]struct{}{}, rings: &[]ring{},
	}
	h.closing, h.stop = context.WithCancel(context.Background())
	for _, source := range sources {
		p, err := h.newPoller(source, maxAllHoldings/len(sources))
		if err != nil {
			h.stop()
			return nil, fmt.Errorf("dashboard: source %q: %w", source.Name, err)
		}
		h.sources = append(h.sources, p)
	}
	h.routes = h.newRoutes()
	return h, nil
}

const maxName = 1000

func (h *Handler) newPoller(s Source, maxHoldings int) (*poller, error) {
	switch {
	case s.Name == "" || len(s.Name) > maxName:
		return nil, fmt.Errorf("%w: the name is empty or has more than %d bytes", dlock.ErrInvalidConfig, maxName)
	case h.source(s.Name) != nil:
		return nil, fmt.Errorf("%w: the name is used twice", dlock.ErrInvalidConfig)
	case s.Client == nil:
		return nil, fmt.Errorf("%w: Client is nil", dlock.ErrInvalidConfig)
	case slices.Contains(s.Holders, nil):
		return nil, fmt.Errorf("%w: a Client of Holders is nil", dlock.ErrInvalidConfig)
	}
	admin, err := s.Client.Admin()
	if err != nil {
		return nil, err
	}
	p := &poller{
		handler: h, name: s.Name, client: s.Client, admin: admin, reader: lockreader.New(admin),
		latest: &snapshot{rows: map[string]*row{}}, history: newHistory(maxHoldings), tally: &tally{},
		own: &ownReader{clients: append([]*dlock.Client{s.Client}, s.Holders...)},
	}
	p.asker = newAsker(p)
	return p, nil
}

func (h *Handler) source(name string) *poller {
	for _, p := range h.sources {
		if p.name == name {
			return p
		}
	}
	return nil
}

// ServeHTTP answers a request for the page, an asset or the API.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.routes.ServeHTTP(w, r) }

// Close ends the streams of all browsers and stops reading. It returns when no goroutine of the
// Handler is left. Requests for data after Close get status 503.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.streams.Wait()
	h.work.Wait()
	return nil
}

// whenClosed calls do when the Handler is closed, unless it is stopped.
func (h *Handler) whenClosed(do func()) (stop func() bool) { return context.AfterFunc(h.closing, do) }

// enter begins a request that needs the sources. It returns false after Close. Close waits for the
// request, so it ends the writing of the answer: the client may not read.
func (h *Handler) enter(w http.ResponseWriter) (leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false
	}
	h.streams.Add(1)
	control := http.NewResponseController(w)
	h.limitWriting(control, answerTimeout)
	var mu sync.Mutex
	left := false // after which w must not be used
	stop := h.whenClosed(func() {
		mu.Lock()
		defer mu.Unlock()
		if !left {
			h.limitWriting(control, closeTimeout)
		}
	})
	return func() {
		stop()
		mu.Lock()
		left = true
		mu.Unlock()
		h.streams.Done()
	}, true
}

const (
	writeTimeout  = 20 * time.Second                    // after which a write ends whose client does not read; what fits into the buffers of the kernel is written
	answerTimeout = 3*lockreader.Timeout + writeTimeout // with the questions to the backend
	closeTimeout  = 2 * time.Second                     // for answers that are being written
)

// limitWriting sets how long the client may take to read.
func (h *Handler) limitWriting(c *http.ResponseController, most time.Duration) {
	_ = c.SetWriteDeadline(time.Now().Add(most)) // some writers of tests and proxies have none
	if h.closing.Err() != nil {
		_ = c.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
}

// subscribe returns a channel that receives after a source has changed. It holds one value, so a
// slow reader skips what it missed.
func (h *Handler) subscribe() (changed chan struct{}, cancel func()) {
	changed = make(chan struct{}, 1)
	h.mu.Lock()
	h.waiting[changed] = struct{}{}
	h.mu.Unlock()
	return changed, func() {
		h.mu.Lock()
		delete(h.waiting, changed)
		h.mu.Unlock()
	}
}

// publish tells all subscribers that a source has changed.
func (h *Handler) publish() {
	found := findRings(h.sources)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !sameRings(found, *h.rings) {
		h.rings = &found
	}
	for c := range h.waiting {
		select {
		case c <- struct{}{}:
		default: // it has not read the last one yet
		}
	}
}

func (h *Handler) currentRings() *[]ring {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rings
}
