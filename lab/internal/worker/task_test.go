package worker

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// draws are many tasks of all hands of a worker.
func draws(w *worker) (all []task) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 2000 {
		for _, h := range w.hands() {
			all = append(all, w.draw(r, h, n))
		}
	}
	return all
}

func newWorker(mode schedule.Mode) *worker {
	return &worker{orders: Orders{Name: "w", TTL: 2 * time.Second, Mode: mode, Backend: Backend{Kind: "cluster"}}}
}

func TestTheWholeAPIIsDrawn(t *testing.T) {
	w := newWorker(schedule.Inside)
	w.shared, w.permits, w.leases, w.orders.Setup.Reentrant = true, true, true, true
	seen := map[string]bool{}
	for _, task := range draws(w) {
		seen[string(task.verb)] = true
		for name, has := range map[string]bool{
			"min hold": task.minHold > 0, "max hold": task.maxHold > 0, "without renewal": task.fixed, "extend": task.extend > 0,
			"wait": task.hasWait, "cancel": task.cancel > 0, "inside": task.again, "info": !task.anonymous,
			"margin": task.margin > 0, "async": task.async, "own lease": task.ownLease, "leave": task.leave,
			"async of several": task.async && task.keys != nil,
			"shared":           task.mode == driver.Shared, "permit": task.mode == driver.Permit,
		} {
			seen[name] = seen[name] || has
		}
	}
	for _, want := range []string{
		"acquire", "try-acquire", "lock", "try-lock", "do", "acquire-all", "do-all", "min hold", "max hold", "without renewal", "extend",
		"wait", "cancel", "inside", "info", "shared", "permit", "margin", "async", "own lease", "leave", "async of several",
	} {
		if !seen[want] {
			t.Errorf("%q is never drawn", want)
		}
	}
}

// Oracles judge how long keys are free whose locks all have one lease and are renewed.
func TestLastingKeysHaveOneLease(t *testing.T) {
	w := newWorker(schedule.Inside)
	for _, task := range draws(w) {
		lasting := strings.HasPrefix(task.key, "slow") || strings.HasPrefix(task.key, "brisk")
		if lasting && (task.ttl != w.orders.TTL || task.fixed || task.minHold > 0 || task.maxHold > 0 || task.extend > task.ttl) {
			t.Fatalf("%+v", task)
		}
	}
}

// What measures times calls nothing but Acquire.
func TestTimesAreMeasuredPlainly(t *testing.T) {
	for _, mode := range []schedule.Mode{schedule.Kills, schedule.Calm} {
		for _, task := range draws(newWorker(mode)) {
			plain := task.verb == acquire || task.verb == tryAcquire || task.hasWait
			if !plain || task.again || task.extend > 0 || task.minHold > 0 || task.maxHold > 0 || task.fixed || task.async || task.ownLease || task.margin > 0 {
				t.Fatalf("%s: %+v", mode, task)
			}
		}
	}
}

// Modes are those that the Client says its backend has.
func TestModesAreAskedFor(t *testing.T) {
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !supports(c, dlock.WithShared()) || !supports(c, dlock.WithPermits(2)) {
		t.Error("memory has shared locks and permits")
	}
}
