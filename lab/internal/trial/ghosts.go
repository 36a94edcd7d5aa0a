package trial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// settled is how soon after its Client was closed nothing of a process is left.
const settled = time.Second

// ghosts looks for claims of workers that ended in good order, and for claims of any
// that have no end.
func (t *trial) ghosts(ctx context.Context) ([]oracle.Ghost, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	time.Sleep(settled)
	events, err := event.Read(t.logPath())
	if err != nil {
		return nil, err
	}
	orderly := map[int]bool{}
	for _, e := range events {
		orderly[e.PID] = orderly[e.PID] || e.Kind == event.Stop
	}
	clients, err := worker.Connect(t.top.Direct())
	if err != nil {
		return nil, err
	}
	defer clients.Close()
	client, err := dlock.New(&dlock.Config{Prefix: worker.Prefix}, dlock.WithBackend(clients.Locks()), dlock.WithAdmin())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin, err := client.Admin()
	if err != nil {
		return nil, err
	}
	return haunted(ctx, admin, orderly)
}

// haunted goes through all claims.
func haunted(ctx context.Context, admin *dlock.Admin, orderly map[int]bool) (found []oracle.Ghost, err error) {
	for cursor := ""; ; {
		keys, next, err := admin.List(ctx, "", cursor, 1000)
		if err != nil {
			return nil, fmt.Errorf("looking for ghosts: %w", err)
		}
		for _, key := range keys {
			claims, err := admin.Inspect(ctx, key)
			if err != nil {
				return nil, fmt.Errorf("looking for ghosts: %w", err)
			}
			for _, c := range claims {
				if (orderly[c.Info.PID] && c.Left > 0) || immortal(ctx, admin, key, c) {
					found = append(found, oracle.Ghost{Key: key, PID: c.Info.PID, Phase: c.Phase.String(), Left: c.Left})
				}
			}
		}
		if cursor = next; cursor == "" {
			return found, nil
		}
	}
}

// immortal says whether a claim has no end: it has no time left, and is still there
// a while later.
func immortal(ctx context.Context, admin *dlock.Admin, key string, c dlock.Claim) bool {
	if c.Phase != driver.Held || c.Left > 0 {
		return false
	}
	time.Sleep(100 * time.Millisecond)
	claims, err := admin.Inspect(ctx, key)
	return err == nil && slices.ContainsFunc(claims, func(again dlock.Claim) bool { return again.ID == c.ID && again.Left <= 0 })
}
