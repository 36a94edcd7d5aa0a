package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// reopen is a fault of the child: a Client and its connections are closed, and others opened.
const reopen schedule.Kind = "reopen"

// faultsOf are what can happen to a backend in the second half. A black hole is shorter or
// longer than all leases.
func faultsOf(backend string) []schedule.Fault {
	local := []schedule.Fault{{Kind: reopen}}
	switch backend {
	case kindFile, kindMemory:
		return local
	case "sentinel": // which has no proxy
		return append(local, schedule.Fault{Kind: schedule.ClientKill, For: time.Second}, schedule.Fault{Kind: schedule.ServerPause, For: ttl / 3})
	}
	return append(local,
		schedule.Fault{Kind: schedule.Cut, For: 500 * time.Millisecond},
		schedule.Fault{Kind: schedule.ServerRestart, For: time.Second},
		schedule.Fault{Kind: schedule.BlackHole, For: ttl / 4},
		schedule.Fault{Kind: schedule.BlackHole, For: 3 * ttl},
	)
}

// injectFault makes a fault and heals it, and says which.
func (b *backendRun) injectFault(ctx context.Context) (string, error) {
	f := b.faults[b.random.IntN(len(b.faults))]
	f.Target = b.random.IntN(100)
	name := fmt.Sprintf("%s for %v", f.Kind, f.For)
	if f.Kind == reopen {
		a, err := b.send(ctx, cmdReopen)
		if a.Error != "" {
			err = fmt.Errorf("%s: reopen: %s", b.name, a.Error)
		}
		return string(reopen), err
	}
	heal, err := b.top.Inject(ctx, f)
	if err != nil {
		return name, fmt.Errorf("%s: %s: %w", b.name, name, err)
	}
	pause(ctx, f.For)
	// Even if we were told to stop: what is broken would hold up the end.
	if err := heal(context.WithoutCancel(ctx)); err != nil {
		return name, fmt.Errorf("%s: after %s: %w", b.name, name, err)
	}
	return name, nil
}
