package trial

import (
	"context"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
)

// holders follows the log, to know the holder of a slow key that another worker waits for.
type holders struct {
	tail    *event.Tail
	holder  map[string]string          // worker by key
	waiting map[string]map[string]bool // workers by key
}

func followHolders(path string) (*holders, error) {
	tail, err := event.Follow(path)
	if err != nil {
		return nil, err
	}
	return &holders{tail, map[string]string{}, map[string]map[string]bool{}}, nil
}

// update takes in what was logged meanwhile.
func (h *holders) update() error {
	events, err := h.tail.Next()
	for _, e := range events {
		if !strings.HasPrefix(e.Key, "slow") {
			continue
		}
		if h.waiting[e.Key] == nil {
			h.waiting[e.Key] = map[string]bool{}
		}
		switch e.Kind {
		case event.Call:
			h.waiting[e.Key][e.Worker] = true
		case event.Enter:
			delete(h.waiting[e.Key], e.Worker)
			h.holder[e.Key] = e.Worker
		case event.Failed:
			delete(h.waiting[e.Key], e.Worker)
		case event.Exit:
			if h.holder[e.Key] == e.Worker {
				delete(h.holder, e.Key)
			}
		default:
		}
	}
	return err
}

// awaited says whether a worker holds a key that another living one waits for.
func (h *holders) awaited(worker string, alive map[string]bool) bool {
	for key, holder := range h.holder {
		if holder != worker {
			continue
		}
		for other := range h.waiting[key] {
			if other != worker && alive[other] {
				return true
			}
		}
	}
	return false
}

// findWithin is how long the lab looks for a holder to kill.
const findWithin = 3 * time.Second

// victim is the position of a worker whose death is to be measured: one that holds a key
// which another waits for, the first from a given position on. If there is none it is that
// position.
func (t *trial) victim(ctx context.Context, from int) (int, error) {
	workers := t.crew.workers
	alive := map[string]bool{}
	for _, m := range workers {
		alive[m.name] = true
	}
	for end := time.Now().Add(findWithin); time.Now().Before(end); {
		if err := t.holders.update(); err != nil {
			return 0, err
		}
		for i := range workers {
			if at := (from + i) % len(workers); t.holders.awaited(workers[at].name, alive) {
				return at, nil
			}
		}
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return 0, err
		}
	}
	return from % len(workers), nil
}
