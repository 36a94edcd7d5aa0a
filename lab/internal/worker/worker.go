package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

type worker struct {
	orders Orders
	open   func() (*dlock.Client, error)
	store  *store.Client
	log    *event.Log
	// shared, permits and leases say what the backend can do besides exclusive locks.
	shared, permits, leases bool

	mu   sync.Mutex
	sess *session
}

// Main runs a worker until SIGTERM. It then finishes what it does, closes its Client
// and returns.
func Main(o Orders) error {
	log, err := event.Open(o.Log, o.Name)
	if err != nil {
		return err
	}
	registers, err := store.Dial(o.Store)
	if err != nil {
		return err
	}
	defer registers.Close()
	clients, err := Connect(o.Backend)
	if err != nil {
		return err
	}
	defer clients.Close()
	locks, err := mutant.Apply(o.Mutant, clients.Locks(), mutant.Servers{Redis: clients.Redis, Etcd: clients.Etcd, Nodes: clients.Nodes, Worker: o.Position})
	if err != nil {
		return err
	}
	cfg := &dlock.Config{Prefix: Prefix, DefaultTTL: o.TTL, LocalBatch: o.Setup.Batch, EnableReentrant: o.Setup.Reentrant}
	opts := []dlock.Option{dlock.WithBackend(tally(locks, log))}
	if o.Mode != schedule.Calm && o.Mode != schedule.Kills { // which measure times
		warnings := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		opts = append(opts, dlock.WithLogger(clog.FromSlog(warnings)))
	}
	w := &worker{orders: o, store: registers, log: log, open: func() (*dlock.Client, error) { return dlock.New(cfg, opts...) }}
	client, err := w.open()
	if err != nil {
		return err
	}
	w.sess = &session{client: client}
	w.shared, w.permits, w.leases = supports(client, dlock.WithShared()), supports(client, dlock.WithPermits(2)), supports(client, dlock.WithOwnLease())
	return w.run()
}

// supports asks a Client whether its backend takes a lock with this option, without a call
// of the backend.
func supports(c *dlock.Client, opt dlock.LockOption) bool {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := c.TryAcquire(over, "question", opt)
	return !errors.Is(err, dlock.ErrUnsupported)
}

func (w *worker) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	w.log.Add(event.Event{Kind: event.Start})
	var all sync.WaitGroup
	for _, h := range w.hands() {
		all.Go(func() { w.toil(ctx, h) })
	}
	if w.orders.Setup.Reopens {
		all.Go(func() { w.reopen(ctx) })
	}
	go w.log.WatchScheduling(context.Background()) // until the process ends
	go w.logEnding(ctx)
	all.Wait()
	began := mono.Now()
	err := w.session().client.Close()
	now := mono.Now()
	w.log.Add(event.Event{At: now, Kind: event.Stop, Dur: now - began, Note: brief(err)})
	return nil // what Close could not confirm, the oracles judge
}

// logEnding logs that the process is run, from when it is told to end until it has. How long it was not,
// it cannot log itself if it is killed.
func (w *worker) logEnding(ctx context.Context) {
	<-ctx.Done()
	for range time.Tick(event.EndingEvery) {
		w.log.Add(event.Event{Kind: event.Ending})
	}
}

func (w *worker) toil(ctx context.Context, h hand) {
	r := rand.New(rand.NewPCG(w.orders.Seed, uint64(w.orders.Position*100+int(h))))
	for n := 0; ctx.Err() == nil; n++ {
		if !w.attempt(ctx, w.draw(r, h, n)) {
			rest(ctx, 20*time.Millisecond)
		}
		rest(ctx, time.Duration(r.Int64N(int64(w.orders.Rest))))
	}
}

// rest pauses, but not after the order to stop.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
