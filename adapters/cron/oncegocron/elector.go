package oncegocron

import (
	"context"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/election"
)

// An Elector implements gocron.Elector: one of several schedulers runs all jobs, and another one when its process dies.
// Unlike a Locker it works with files too. It does not promise that a job runs at most once in its interval: when the leader
// changes, the next leader does not know what the last one has run.
type Elector struct {
	election *election.Election
	stop     context.CancelFunc
	ended    chan struct{}
	err      error // after ended
	once     sync.Once
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector that stands for election until Close. The opts are those of election.New.
func NewElector(locks *dlock.Client, name string, opts ...election.Option) (*Elector, error) {
	e := &Elector{ended: make(chan struct{})}
	var err error
	e.election, err = election.New(locks, name, election.Callbacks{
		OnElected: func(ctx context.Context, _ int64) { <-ctx.Done() },
	}, opts...)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	go func() {
		defer close(e.ended)
		e.err = e.election.Run(ctx)
	}()
	return e, nil
}

// IsLeader implements gocron.Elector. It makes no call to the backend.
func (e *Elector) IsLeader(context.Context) error {
	select {
	case <-e.ended:
		return e.err // the backend refuses, or Close
	default:
	}
	if _, leads := e.election.Term(); !leads {
		return election.ErrNotLeader
	}
	return nil
}

// Close gives the lease back, so that another scheduler leads at once. Call it after Shutdown of the scheduler, and before Close
// of the Client.
func (e *Elector) Close() {
	e.once.Do(e.stop)
	<-e.ended
}
