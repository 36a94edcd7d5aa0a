package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// hands is how many goroutines a worker has: one holds for long, one for a while, and
// the others briefly.
const hands = 4

type worker struct {
	orders Orders
	client *dlock.Client
	store  *store.Client
	log    *event.Log
}

// Main runs a worker until SIGTERM. It then finishes what it does, closes its Client
// and returns.
func Main(o Orders) error {
	log, err := event.Open(o.Log, o.Name)
	if err != nil {
		return err
	}
	defer log.Close()
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
	client, err := dlock.New(&dlock.Config{Prefix: Prefix, DefaultTTL: o.TTL, LocalBatch: o.Batch}, dlock.WithBackend(tally(locks, log)))
	if err != nil {
		return err
	}
	w := &worker{orders: o, client: client, store: registers, log: log}
	return w.run()
}

func (w *worker) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	w.log.Add(event.Event{Kind: event.Start})
	var all sync.WaitGroup
	for hand := range hands {
		all.Go(func() { w.toil(ctx, hand) })
	}
	all.Go(func() { w.log.WatchScheduling(ctx) })
	all.Wait()
	err := w.client.Close()
	if err == nil || !errors.Is(err, dlock.ErrUnknownOutcome) {
		w.log.Add(event.Event{Kind: event.Stop})
	}
	return nil // what Close could not confirm, the oracles judge
}

func (w *worker) toil(ctx context.Context, hand int) {
	r := rand.New(rand.NewPCG(w.orders.Seed, uint64(w.orders.Position*100+hand)))
	for n := 0; ctx.Err() == nil; n++ {
		if !w.attempt(ctx, w.draw(r, hand, n)) {
			rest(ctx, 20*time.Millisecond)
		}
		rest(ctx, time.Duration(r.Int64N(int64(w.orders.Rest))))
	}
}

// rest pauses, but not for one who is told to stop.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
