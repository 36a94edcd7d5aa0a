package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// A call that takes long does not count any more, since its member may hang. Room is given back once.
func TestRoomIsGivenBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &etcdDriver{enqueuing: make(chan struct{}, 2)}
		take := func() (leave func()) {
			t.Helper()
			leave, err := d.takeRoom(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		want := func(what string, n int) {
			t.Helper()
			synctest.Wait()
			if got := len(d.enqueuing); got != n {
				t.Errorf("%s: %d have room, want %d", what, got, n)
			}
		}
		slow := take()
		time.Sleep(slowEnqueue - 1)
		want("a call is under way", 1)
		time.Sleep(time.Nanosecond)
		want("it is slow", 0)
		next := take()
		slow()
		want("it has ended", 1)
		next()
		want("the next one has ended", 0)
		next()
		last := take()
		time.Sleep(slowEnqueue - 1)
		want("the time of a call that has ended is up", 1)
		last()
	})
}

// A caller that waits for its lock leaves time for the call itself, unless there is not enough for one. Nothing was sent.
func TestWaitForRoomLeavesTimeForTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &etcdDriver{enqueuing: make(chan struct{}, 1)}
		d.enqueuing <- struct{}{}
		for _, c := range []struct {
			within time.Duration
			wait   bool
			took   time.Duration
			err    error
		}{
			{2 * time.Second, true, time.Second, sharedtimeout.ErrNoRoom},
			{2 * time.Second, false, 2 * time.Second, context.DeadlineExceeded},
			{nearTheEnd + 2, true, nearTheEnd/2 + 1, sharedtimeout.ErrNoRoom},
			{nearTheEnd, true, nearTheEnd, context.DeadlineExceeded},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			began := time.Now()
			_, err := d.takeRoom(ctx, c.wait)
			took := time.Since(began)
			cancel()
			if took != c.took || !errors.Is(err, c.err) || !errors.Is(err, driver.ErrNotReady) || driver.ClassOf(err) != driver.Transient {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
		}
		began := time.Now()
		time.AfterFunc(time.Hour, func() { <-d.enqueuing })
		leave, err := d.takeRoom(t.Context(), true) // without a deadline
		if err != nil || time.Since(began) != time.Hour {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		leave()
	})
}

// Only a new claim that waits, and has a lease of its own, needs room before that lease is asked for.
func TestWhoNeedsRoomFirst(t *testing.T) {
	known := driver.Ref{Key: "k", ID: "known"}
	d := &etcdDriver{claims: map[string]*claim{known.ID: {}}}
	for _, c := range []struct {
		r    driver.Request
		want bool
	}{
		{driver.Request{Wait: true, Fixed: true}, true},
		{driver.Request{Wait: true, OwnLease: true}, true},
		{driver.Request{Wait: true}, false},
		{driver.Request{Fixed: true}, false},
		{driver.Request{OwnLease: true}, false},
		{driver.Request{Ref: known, Wait: true, Fixed: true}, false},
	} {
		if got := d.needsRoom(c.r); got != c.want {
			t.Errorf("%+v: %v", c.r, got)
		}
	}
}
