package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A master is quick after eight quick round trips in a row. One that takes longer, or is not answered, begins the count again.
func TestQuickMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipeliner{driver: &redisDriver{}}
		trips := func(n int, took time.Duration, calls int, answered bool) {
			for range n {
				p.record(time.Now().Add(-took), calls, answered)
			}
		}
		for _, tc := range []struct {
			n        int
			took     time.Duration
			answered bool
			quick    int
		}{
			{7, quickTrip, true, 7},
			{1, quickTrip, true, quickTrips},
			{5, 0, true, quickTrips},
			{1, quickTrip + 1, true, 0},
			{2, 0, true, 2},
			{1, 0, false, 0},
		} {
			trips(tc.n, tc.took, 1, tc.answered)
			if p.quick != tc.quick || p.batching || !p.used.Equal(time.Now()) {
				t.Errorf("%d quick round trips after %+v", p.quick, tc)
			}
		}
		trips(1, 0, 2, true)
		if !p.batching {
			t.Error("calls that follow a shared round trip are not collected")
		}
		trips(1, 0, 0, true)
		if p.batching {
			t.Error("calls that follow releases without callers are collected")
		}
		if trips(1, 2*attemptTimeout, 1, false); p.stalled.Load() {
			t.Error("a master is stalled after two attempts")
		}
		if trips(1, 2*attemptTimeout+1, 1, false); !p.stalled.Load() {
			t.Error("a master is not stalled after more than two attempts")
		}
		p.driver.settings.inlineOnceAnswered = true
		if trips(1, time.Hour, 1, true); p.quick != quickTrips {
			t.Error("an answer does not make a server quick, though a test asks for that")
		}
	})
}

// A call is made inline, with a short time, only at a quick master, alone, with room in flight, and if its caller allows it.
func TestWhichCallsAreInline(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*pipeliner)
		mode   callMode
		want   bool
	}{
		{"quick", func(*pipeliner) {}, mayInline, true},
		{"not quick yet", func(p *pipeliner) { p.quick = quickTrips - 1 }, mayInline, false},
		{"an operator's", func(*pipeliner) {}, notInline, false},
		{"with others", func(p *pipeliner) { p.batching = true }, mayInline, false},
		{"one fewer than the most in flight", func(p *pipeliner) { p.inFlight = maxInFlight - 1 }, mayInline, true},
		{"no client with a short time", func(p *pipeliner) { p.driver.shortTimeoutClient = nil }, mayInline, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var left time.Duration
			d, _ := openScripted(t, func(ctx context.Context, _ sent) (any, error) {
				end, _ := ctx.Deadline()
				left = time.Until(end)
				return "ok", nil
			})
			p := &d.pipeliner
			p.quick = quickTrips
			tc.change(p)
			before := p.inFlight
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := p.send(ctx, releaseScript.Command(ctx, []string{"k"}), tc.mode); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if inline := left <= attemptTimeout; inline != tc.want || !inline && left != tripTimeout {
				t.Errorf("%s: the call has %v", tc.name, left)
			}
			if p.inFlight != before {
				t.Errorf("%s: %d round trips are in flight, %d were", tc.name, p.inFlight, before)
			}
		})
	}
}

// What is sent together: delayed releases first, up to a full batch, without the calls whose callers have left.
func TestNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openScripted(t, nil)
		p := &d.pipeliner
		calls := func(n int) (all []*pendingCall) {
			for range n {
				all = append(all, &pendingCall{})
			}
			return all
		}
		for _, tc := range []struct {
			name             string
			pending, delayed int
			left             []int // which pending calls have no caller any more
			full             int   // full batches in flight
			want             int   // how many are sent
			nowFull          int
			rest, leftThen   int
		}{
			{"one", 1, 0, nil, 0, 1, 0, 0, 0},
			{"with delayed ones", 2, 3, nil, 0, 5, 0, 0, 0},
			{"a full batch", maxBatch + 3, 0, nil, 1, maxBatch, 2, 3, 0},
			{"not quite full", maxBatch - 1, 0, nil, 0, maxBatch - 1, 0, 0, 0},
			{"some have left", maxBatch + 3, 0, []int{0, 5, maxBatch}, 0, maxBatch - 2, 0, 3, 1},
			{"full ones are in flight", maxBatch, 0, nil, maxFull, 0, maxFull, maxBatch, 0},
			{"full ones are in flight, and few wait", maxBatch - 1, 0, nil, maxFull, maxBatch - 1, maxFull, 0, 0},
			{"full ones are in flight, and few still wait", maxBatch, 0, []int{7}, maxFull, maxBatch - 1, maxFull, 0, 0},
			{"all have left", 3, 0, []int{0, 1, 2}, 0, 0, 0, 0, 0},
			{"all of the first batch have left", maxBatch + 1, 0, upTo(maxBatch), 0, 1, 0, 0, 0},
			{"none", 0, 0, nil, 0, 0, 0, 0, 0},
		} {
			p.pending, p.delayed, p.full, p.left, p.inFlight = calls(tc.pending), calls(tc.delayed), tc.full, len(tc.left), 4
			for _, i := range tc.left {
				p.pending[i].abandoned = true
			}
			first := append(slices.Clone(p.delayed), p.pending...)
			batch := p.next()
			if len(batch) != tc.want || len(p.pending) != tc.rest || len(p.delayed) != 0 || p.full != tc.nowFull || p.left != tc.leftThen {
				t.Errorf("%s: %d are sent, %d pending, %d delayed, %d full, %d left", tc.name, len(batch), len(p.pending), len(p.delayed), p.full, p.left)
			}
			inFlight := 4
			if tc.want == 0 {
				inFlight = 3
			} else if len(tc.left) == 0 && !slices.Equal(batch, first[:tc.want]) {
				t.Errorf("%s: in another order", tc.name)
			}
			if p.inFlight != inFlight {
				t.Errorf("%s: %d round trips in flight", tc.name, p.inFlight)
			}
			for i, c := range first {
				if c.taken != (i < len(first)-tc.rest) {
					t.Errorf("%s: call %d is taken: %v", tc.name, i, c.taken)
				}
			}
		}
		p.pending, p.full, p.inFlight = calls(1), 0, 1
		d.cancel()
		if batch := p.next(); len(batch) != 0 || p.inFlight != 0 || len(p.pending) != 1 {
			t.Errorf("%d calls are sent after Close", len(batch))
		}
		p.pending = nil
	})
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// A batch has as long as its most patient call, and no longer than a round trip may take.
func TestTimeOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left time.Duration
		d, _ := openScripted(t, func(ctx context.Context, _ sent) (any, error) {
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return "ok", nil
		})
		for _, tc := range []struct{ limits []time.Duration }{
			{[]time.Duration{time.Second}},
			{[]time.Duration{100 * time.Millisecond}},
			{[]time.Duration{100, 300 * time.Millisecond, 200}},
			{[]time.Duration{100 * time.Millisecond, 0}},
			{[]time.Duration{0}},
		} {
			var batch []*pendingCall
			want := time.Duration(0)
			for _, limit := range tc.limits {
				c := &pendingCall{cmd: releaseScript.Command(t.Context(), []string{"k"}), done: make(chan struct{})}
				if limit > 0 {
					c.until = time.Now().Add(limit)
				} else {
					want = tripTimeout
				}
				want = max(want, limit)
				batch = append(batch, c)
			}
			if answered := d.pipeliner.flush(batch); !answered || left != min(want, tripTimeout) {
				t.Errorf("%v: it has %v", tc.limits, left)
			}
			for _, c := range batch {
				<-c.done
			}
		}
	})
}

// After a shared round trip, callers have a moment to join the next one: a twentieth of it, and 200 µs at most.
func TestCollecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for trip, want := range map[time.Duration]time.Duration{
			time.Millisecond - 1: 0, time.Millisecond: 50 * time.Microsecond, 4 * time.Millisecond: 200 * time.Microsecond, time.Hour: 200 * time.Microsecond,
		} {
			began := time.Now()
			new(pipeliner).collect(trip)
			if took := time.Since(began); took != want {
				t.Errorf("%v after a round trip of %v, want %v", took, trip, want)
			}
		}
	})
}

// If a hook of the client panics, the caller of a call that was alone panics, as if it had made the call. Calls that shared the round trip
// get an error, unless they were answered before that. Those that nobody waits for are told.
func TestPanicOfARoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openScripted(t, func(_ context.Context, c sent) (any, error) {
			if c.keys[0] == "bad" {
				panic("of a hook")
			}
			return "ok", nil
		})
		p := &d.pipeliner
		var told error
		call := func(key string) *pendingCall {
			return &pendingCall{cmd: releaseScript.Command(t.Context(), []string{key}), done: make(chan struct{})}
		}
		batch := []*pendingCall{call("good"), call("bad"), call("later"), call("later")}
		batch[3].answer = func(err error) { told = err }
		if p.flush(batch) {
			t.Error("the round trip counts as answered")
		}
		for i, c := range batch {
			if failed := errors.Is(c.cmd.Err(), errPanicked); failed != (i > 0) || c.panicked != nil {
				t.Errorf("call %d: %v, panicked with %v", i, c.cmd.Err(), c.panicked)
			}
			if i < 3 {
				<-c.done
			}
		}
		if !errors.Is(told, errPanicked) {
			t.Errorf("told %v", told)
		}
		defer func() {
			if reason := recover(); reason != "of a hook" {
				t.Errorf("panicked with %v", reason)
			}
			synctest.Wait()
			if p.inFlight != 0 {
				t.Errorf("%d round trips are in flight", p.inFlight)
			}
		}()
		_ = p.send(t.Context(), releaseScript.Command(t.Context(), []string{"bad"}), notInline)
	})
}

// The end of an inline call begins a round trip for the calls that have waited meanwhile, in its place.
func TestCallsBehindAnInlineCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h := openScripted(t, always("ok", nil))
		p := &d.pipeliner
		p.inFlight = maxInFlight
		c := &pendingCall{cmd: releaseScript.Command(t.Context(), []string{"k"}), done: make(chan struct{})}
		p.pending = []*pendingCall{c}
		p.finish(time.Now(), true)
		<-c.done
		synctest.Wait()
		if h.wantSent(t, "release"); p.inFlight != maxInFlight-1 {
			t.Errorf("%d round trips are in flight", p.inFlight)
		}
		if p.finish(time.Now(), true); p.inFlight != maxInFlight-2 {
			t.Errorf("%d round trips are in flight after the next", p.inFlight)
		}
		d.cancel()
		p.pending = []*pendingCall{c}
		if p.finish(time.Now(), true); p.inFlight != maxInFlight-3 || len(p.pending) != 1 {
			t.Error("a call is sent after Close")
		}
		p.pending = nil
	})
}

// A call that is refused by a demoted master is repeated once for each connection that may lead there, and one more time.
func TestStaleConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openCluster(t)
		if n := d.staleConnections(); n != 0 {
			t.Errorf("%d repeats on a cluster, where go-redis follows redirects", n)
		}
	})
	d, _ := openScripted(t, nil)
	if n := d.staleConnections(); n != 1 {
		t.Errorf("%d repeats without idle connections", n)
	}
}

// A cause without a connection is looked for only if the time of a call is over, not if its caller has left.
func TestExplainedErrors(t *testing.T) {
	d, _ := openScripted(t, nil)
	for _, err := range []error{context.Canceled, fmt.Errorf("no: %w", driver.ErrNotReady)} {
		if got := d.explain(err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := d.explain(context.DeadlineExceeded); errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("no cause: %v", got)
	}
}
