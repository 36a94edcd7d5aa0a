package dlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// In JSON, an Admin shows modes and phases as words, and durations as text.
func TestClaimsAsJSON(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		acquire(t, c, "k", dlock.WithTTL(20*time.Second), dlock.WithInfo(dlock.Info{Owner: "api", Host: "web-1", PID: 7, Purpose: "report"}))
		time.Sleep(1500 * time.Millisecond)
		text, err := json.Marshal(inspect(t, c, "k"))
		const want = `[{"phase":"held","mode":"exclusive","token":1,"info":{"owner":"api","host":"web-1","pid":7,"purpose":"report"},"age":"1.5s","remaining":"18.5s"}]`
		if err != nil || string(text) != want {
			t.Errorf("%s, %v\nwant %s", text, err, want)
		}
		text, err = json.Marshal(dlock.Finding{Level: dlock.LevelWarning, Name: "space", Detail: "little is left"})
		if err != nil || string(text) != `{"level":"warning","name":"space","detail":"little is left"}` {
			t.Errorf("%s, %v", text, err)
		}
	})
}

// List iterates over all pages, stops when the loop does, and ends with an error.
func TestListIsASequence(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{})
	const all = 2500
	for i := range all {
		acquire(t, c, fmt.Sprintf("order:%04d", i))
	}
	acquire(t, c, "other")
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for key, err := range admin.List(ctx, "order:") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != all || keys[0] != "order:0000" || keys[all-1] != "order:2499" {
		t.Errorf("%d keys", len(keys))
	}
	seen := 0
	for range admin.List(ctx, "order:") {
		seen++
		if seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("%d keys after a break at 3", seen)
	}
	dead, cancel := context.WithCancel(ctx)
	cancel()
	results := 0
	for key, err := range admin.List(dead, "order:") {
		if results++; key != "" || !errors.Is(err, context.Canceled) {
			t.Errorf("%q, %v", key, err)
		}
	}
	if results != 1 {
		t.Errorf("%d results of a call that is over", results)
	}
}

// Waiters returns the queue in order, without the holder.
func TestWaitersAreASequence(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		held := acquire(t, c, "k")
		limit, cancel := context.WithCancel(ctx)
		ended := make(chan error, 3)
		for i := range 3 {
			go func() {
				_, err := c.Acquire(limit, "k", dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint("waiter ", i)}))
				ended <- err
			}()
			time.Sleep(time.Second)
		}
		admin, err := c.Admin()
		if err != nil {
			t.Fatal(err)
		}
		var waiting []string
		for cl, err := range admin.Waiters(ctx, "k") {
			if err != nil || cl.Phase != dlock.PhaseQueued {
				t.Fatalf("%v, %v", cl, err)
			}
			waiting = append(waiting, cl.Info.Purpose)
		}
		if want := []string{"waiter 0", "waiter 1", "waiter 2"}; !slices.Equal(waiting, want) {
			t.Errorf("%v", waiting)
		}
		for range admin.Waiters(ctx, "k") {
			break
		}
		results := 0
		for _, err := range admin.Waiters(ctx, "") {
			if results++; !errors.Is(err, dlock.ErrInvalidKey) {
				t.Error(err)
			}
		}
		if results != 1 {
			t.Errorf("%d results of a call without a key", results)
		}
		cancel()
		for range 3 {
			wantErr(t, <-ended, context.Canceled)
		}
		unlock(t, held)
	})
}
