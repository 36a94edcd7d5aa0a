package worker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A session is one Client of the process, and when the process began to close it.
type session struct {
	client *dlock.Client

	// mu keeps a program that closes its Client from doing so between the last look at a
	// lock and the write that follows: that is for the program to see to.
	mu     sync.RWMutex
	closed int64 // 0: not yet
}

// write does something unless the Client is being closed.
func (s *session) write(do func()) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed == 0 {
		do()
	}
}

func (s *session) closedAt() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closed
}

func (w *worker) session() *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sess
}

// reopen replaces the Client now and then, and closes the old one under its users.
func (w *worker) reopen(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.orders.Seed, uint64(w.orders.Position*100+99)))
	for {
		rest(ctx, 2*time.Second+time.Duration(r.Int64N(int64(8*time.Second))))
		if ctx.Err() != nil {
			return
		}
		client, err := w.open()
		if err != nil {
			panic(err) // it was opened once with the same settings
		}
		w.mu.Lock()
		old := w.sess
		w.sess = &session{client: client}
		w.mu.Unlock()
		old.mu.Lock()
		old.closed = mono.Now()
		old.mu.Unlock()
		err = old.client.Close()
		now := mono.Now()
		w.log.Add(event.Event{At: now, Kind: event.Closed, Dur: now - old.closed, Note: brief(err)})
	}
}
