package trial

import (
	"context"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lookout sees what the servers store, past all proxies.
type lookout struct {
	clients *worker.Clients
	client  *dlock.Client
	admin   *dlock.Admin
}

func newLookout(b worker.Backend) (*lookout, error) {
	clients, err := worker.Connect(b)
	if err != nil {
		return nil, err
	}
	l := &lookout{clients: clients}
	l.client, err = dlock.New(&dlock.Config{Prefix: worker.Prefix}, dlock.WithBackend(clients.Locks()), dlock.WithAdmin())
	if err == nil {
		l.admin, err = l.client.Admin()
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lookout) close() {
	if l.client != nil {
		_ = l.client.Close()
	}
	l.clients.Close()
}

// each goes through all claims that are stored.
func (l *lookout) each(ctx context.Context, see func(key string, c dlock.Claim)) error {
	for key, err := range l.admin.List(ctx, "") {
		if err != nil {
			return fmt.Errorf("looking at what is stored: %w", err)
		}
		claims, err := l.admin.Inspect(ctx, key)
		if err != nil {
			return fmt.Errorf("looking at what is stored: %w", err)
		}
		for _, c := range claims {
			see(key, c)
		}
	}
	return nil
}

// lookAround records what is stored a second after a fault was healed, if the next one
// leaves the time. A look that a fault cut short shows nothing.
func (t *trial) lookAround(ctx context.Context, next time.Time) error {
	if time.Until(next) < oracle.CleanupTime+100*time.Millisecond {
		return nil
	}
	if err := sleepUntil(ctx, time.Now().Add(oracle.CleanupTime)); err != nil {
		return err
	}
	look, cancel := context.WithDeadline(ctx, next)
	defer cancel()
	var seen []oracle.StoredClaim
	before := mono.Now()
	err := t.lookout.each(look, func(key string, c dlock.Claim) {
		seen = append(seen, oracle.StoredClaim{Before: before, After: mono.Now(), Key: key, PID: c.Info.PID, Phase: string(c.Phase), Token: c.Token, Purpose: c.Info.Purpose, Left: c.Remaining})
	})
	if err == nil {
		t.evidence.Looks++
		t.evidence.Stored = append(t.evidence.Stored, seen...)
	}
	return ctx.Err()
}
