package worker

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The keys of one call share a slot, and its options are none that count from the grant of each key.
func TestKeysOfOneCall(t *testing.T) {
	w := newWorker(schedule.Inside)
	sizes := map[int]int{}
	for _, task := range draws(w) {
		if task.keys == nil {
			continue
		}
		sizes[len(task.keys)]++
		for i, key := range task.keys {
			apart := schedule.Slot(Prefix+key) != schedule.Slot(Prefix+task.keys[0])
			if apart || slices.Contains(task.keys[:i], key) {
				t.Fatalf("%q", task.keys)
			}
		}
		if task.anonymous || task.fixed || task.minHold > 0 || task.maxHold > 0 || task.verb == doAll {
			t.Fatalf("%+v", task)
		}
	}
	if len(sizes) != 2 || sizes[2] == 0 || sizes[3] == 0 {
		t.Errorf("so many of each size: %v", sizes)
	}
}

func TestErrorForOneOfSeveralKeys(t *testing.T) {
	a, b := &dlock.Error{Key: "a", Err: dlock.ErrOwnershipLost}, &dlock.Error{Key: "b", Err: dlock.ErrUnknownOutcome}
	all := errors.Join(errors.Join(a, b)) // as DoAll joins them
	for key, want := range map[string]string{"a": dlock.ErrOwnershipLost.Error(), "b": dlock.ErrUnknownOutcome.Error(), "c": ""} {
		if got := brief(errorFor(all, key)); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if errorFor(nil, "a") != nil || brief(errorFor(dlock.ErrClosed, "a")) != dlock.ErrClosed.Error() {
		t.Error("an error that names no key is one of each")
	}
}

// workAt lets two workers call for several keys of one backend, and returns what they logged.
func workAt(t *testing.T, backend driver.Opener, tasks int) []event.Event {
	t.Helper()
	dir := t.TempDir()
	registers, err := store.Listen(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer registers.Close()
	path := filepath.Join(dir, "events")
	var all sync.WaitGroup
	for position, name := range []string{"w0", "w1"} {
		w := newWorker(schedule.Inside)
		w.orders.Name, w.orders.Setup.Reentrant, w.orders.TTL = name, true, time.Minute // however slow the machine is
		if w.log, err = event.Open(path, name); err != nil {
			t.Fatal(err)
		}
		if w.store, err = store.Dial(filepath.Join(dir, "store")); err != nil {
			t.Fatal(err)
		}
		client, err := dlock.New(&dlock.Config{EnableReentrant: true}, dlock.WithBackend(backend))
		if err != nil {
			t.Fatal(err)
		}
		w.sess = &session{client: client}
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(position)))
			for n := range tasks {
				w.attempt(t.Context(), w.draw(r, several, n))
			}
			_, _ = client.Close(), w.store.Close()
			_ = w.log.Close()
		})
	}
	all.Wait()
	_, counts := registers.Log()
	if counts.Writes == 0 || counts.UnfencedLost+counts.FencedLost+counts.Rejected > 0 {
		t.Errorf("the registers: %+v", counts)
	}
	events, err := event.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Each key of a call is an attempt of its own, with its own token.
func TestEveryKeyIsLogged(t *testing.T) {
	kinds, plans, verbs := map[string][]event.Kind{}, map[string]*event.Plan{}, map[string]int{}
	byCall, failed := map[string]int{}, map[string]int{} // how many attempts, and how many of them name an error
	last := map[string]int64{}
	for _, e := range workAt(t, memlock.New(), 100) {
		kinds[e.Attempt] = append(kinds[e.Attempt], e.Kind)
		switch e.Kind {
		case event.Call:
			plans[e.Attempt] = e.Plan
			verbs[e.Verb]++
			byCall[e.Plan.Together]++
		case event.Enter:
			if e.Fence <= last[e.Key] {
				t.Errorf("%s: token %d after %d", e.Key, e.Fence, last[e.Key])
			}
			last[e.Key] = e.Fence
		case event.Failed:
			if call := plans[e.Attempt].Together; e.Note != event.Withdrawn {
				failed[call]++
			}
		default:
		}
	}
	granted := 0
	for attempt, got := range kinds {
		got = slices.DeleteFunc(got, func(k event.Kind) bool { return k == event.Extended })
		want := []event.Kind{event.Call, event.Enter, event.Exit, event.Released}
		switch n := failed[plans[attempt].Together]; {
		case n == 1:
			want = []event.Kind{event.Call, event.Failed}
		case n > 1:
			t.Errorf("%s: %d of its keys failed", plans[attempt].Together, n)
		default:
			granted++
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", attempt, got, want)
		}
	}
	for call, n := range byCall {
		if n < 2 || n > 3 {
			t.Errorf("%s has %d keys", call, n)
		}
	}
	if granted == 0 || len(failed) == 0 || len(verbs) != 2 {
		t.Errorf("%d attempts were granted, %d calls failed; %v", granted, len(failed), verbs)
	}
}

// What was lost names its key, and the others are left.
func TestOneOfSeveralKeysIsLost(t *testing.T) {
	lost := &dlock.Error{Key: "b", Err: dlock.ErrOwnershipLost}
	task := task{keys: []string{"a", "b"}, attempt: "w/1", careless: true}
	for i, p := range task.parts() {
		got := p.exit(&session{}, int64(5*time.Second), int64(3*time.Second), lost)
		want := []string{event.Done, event.Lost}[i]
		if got.Note != want || got.Key != p.key || got.Dur != int64(2*time.Second) {
			t.Errorf("%+v", got)
		}
	}
	closed := &session{closed: 7}
	if got := task.parts()[0].exit(closed, 9, 8, dlock.ErrClosed); got.Note != event.Parted || got.At != 7 {
		t.Errorf("%+v", got)
	}
}
