package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// renewalOf returns a renewal of claims, as Renew makes it.
func renewalOf(d *redisDriver, refs ...driver.Ref) *renewal {
	return &renewal{driver: d, refs: refs, sent: time.Now(), states: make([]driver.State, len(refs)), errs: make([]error, len(refs))}
}

// An answer that arrives after Renew has returned changes nothing: the claim may have been submitted again.
func TestRenewalEndsBeforeItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openScripted(t, func(_ context.Context, c sent) (any, error) {
			time.Sleep(time.Second)
			return []any{c.args[0], "gone " + claimA.ID + " 0"}, nil
		})
		d.waiting[claimA.ID] = waiter{key: "k"}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		states, err := d.Renew(ctx, []driver.Ref{claimA})
		if states[0].Phase != driver.Unknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v", states, err)
		}
		time.Sleep(2 * time.Second)
		if Waiting(d) != 1 {
			t.Error("a late answer has removed the claim from those that wait")
		}
	})
}

// What a renewal had no time for has no error of its own: nothing was sent.
func TestRenewalWithoutTime(t *testing.T) {
	d, h := openScripted(t, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r := renewalOf(d, claimA)
	r.run(ended, &d.pipeliner, []*batch{{claims: []int{0}}})
	if h.wantSent(t); r.errs[0] != nil {
		t.Errorf("%v", r.errs[0])
	}
}

// A stalled master is waited for if there is no other.
func TestOnlyMasterIsStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openScripted(t, func(_ context.Context, c sent) (any, error) {
			time.Sleep(time.Second)
			return []any{c.args[0], "5"}, nil
		})
		d.pipeliner.stalled.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		states, err := d.Renew(ctx, []driver.Ref{claimA})
		if states[0].Phase != driver.Held || err != nil || !states[0].Until.Equal(began.Add(claimA.TTL)) {
			t.Errorf("%+v, %v", states, err)
		}
		if d.pipeliner.stalled.Load() {
			t.Error("it has answered, and counts as stalled")
		}
	})
}

// A countingContext counts what is registered for its end.
type countingContext struct {
	context.Context
	registered int
}

func (*countingContext) Value(any) any { return nil } // so that AfterFunc is used

func (c *countingContext) AfterFunc(f func()) func() bool {
	stop := context.AfterFunc(c.Context, f)
	c.registered++
	return func() bool {
		c.registered--
		return stop()
	}
}

// What a renewal does at a master goes on after Renew has returned, until its time is over or the driver is closed. Then
// nothing of it is left.
func TestRenewalOutlastsItsCall(t *testing.T) {
	closing, cancelDriver := context.WithCancel(context.Background())
	of := &countingContext{Context: closing}
	r := &renewal{driver: &redisDriver{ctx: of}}
	caller, cancelCaller := context.WithTimeout(t.Context(), time.Hour)
	endless, cancelEndless := context.WithCancel(t.Context())
	limited, endLimited := r.outlasting(caller)
	unlimited, endUnlimited := r.outlasting(endless)
	want, _ := caller.Deadline()
	if at, ok := limited.Deadline(); !ok || !at.Equal(want) {
		t.Errorf("it has the deadline %v, want %v", at, want)
	}
	cancelCaller()
	if limited.Err() != nil || unlimited.Err() != nil {
		t.Error("it ends with its call")
	}
	cancelEndless()
	if unlimited.Err() == nil {
		t.Error("it does not end with a call that has no deadline")
	}
	endLimited()
	endUnlimited()
	if limited.Err() == nil || of.registered != 0 {
		t.Errorf("%d are left", of.registered)
	}
	caller, cancelCaller = context.WithTimeout(t.Context(), time.Hour)
	defer cancelCaller()
	limited, endLimited = r.outlasting(caller)
	defer endLimited()
	cancelDriver()
	<-limited.Done()
}

// Many claims are renewed in several scripts and several pipelines, each in one.
func TestRenewalOfManyClaims(t *testing.T) {
	for _, queued := range []bool{false, true} {
		d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
			reply := []any{c.args[0]}
			if queued {
				return append(reply, "held "+c.args[2]+" 5"), nil
			}
			for range c.keys {
				reply = append(reply, "5")
			}
			return reply, nil
		})
		var refs []driver.Ref
		for i := range 2*maxRenewals + 1 {
			r := driver.Ref{Key: fmt.Sprint("k", i), ID: fmt.Sprintf("%032d", i), TTL: time.Minute}
			refs = append(refs, r)
			if queued {
				d.waiting[r.ID] = waiter{key: r.Key}
			}
		}
		states, err := d.Renew(t.Context(), refs)
		if err != nil {
			t.Error(err)
		}
		for i, st := range states {
			if st.Phase != driver.Held || st.Token != 5 {
				t.Fatalf("claim %d is %+v", i, st)
			}
		}
		var sizes []int
		for _, c := range h.calls {
			sizes = append(sizes, len(c.keys))
		}
		want := []int{maxRenewals, maxRenewals, 1}
		if queued {
			want = slices.Repeat([]int{5}, len(refs))
		}
		if !slices.Equal(sizes, want) {
			t.Errorf("queued %v: the scripts have %d keys, want %d", queued, sizes, want)
		}
		if Waiting(d) != 0 {
			t.Errorf("%d claims that hold their locks are known to wait", Waiting(d))
		}
	}
}

// A reply of another form, or of another driver, is an error, and no claim takes anything from it.
func TestRenewalRepliesOfAnotherForm(t *testing.T) {
	d := &redisDriver{name: "me"}
	for _, reply := range []any{
		nil, "me", []any{}, []any{"me"}, []any{"me", "5"}, []any{"me", "5", "6", "7"}, []any{"you", "5", "6"}, []any{int64(1), "5", "6"},
	} {
		r := renewalOf(d, claimA, claimB)
		b := &batch{claims: []int{0, 1}}
		if rest := r.recordTokens(b, reply); len(rest) != 0 || !errors.Is(r.errs[0], ErrUnexpectedReply) || !errors.Is(r.errs[1], ErrUnexpectedReply) || r.states[0] != (driver.State{}) {
			t.Errorf("%v: %+v, %v, %d left", reply, r.states, r.errs, len(rest))
		}
		r = renewalOf(d, claimA, claimB)
		r.recordStates(b, reply)
		if !errors.Is(r.errs[0], ErrUnexpectedReply) || !errors.Is(r.errs[1], ErrUnexpectedReply) || r.states[0] != (driver.State{}) {
			t.Errorf("queued, %v: %+v, %v", reply, r.states, r.errs)
		}
	}
	r := renewalOf(d, claimA, claimB)
	r.recordStates(&batch{claims: []int{0, 1}}, []any{"me", "held " + claimB.ID + " 5", "held " + claimB.ID + " 6"})
	if !errors.Is(r.errs[0], ErrUnexpectedReply) || r.states[0] != (driver.State{}) || r.errs[1] != nil || r.states[1].Token != 6 {
		t.Errorf("one of another claim: %+v, %v", r.states, r.errs)
	}
}

// A claim that does not hold its lock is looked up in the queue, and stays unknown if that is not answered.
func TestNotHeldIsLookedUp(t *testing.T) {
	other := driver.Ref{Key: "other", ID: idOf("c"), TTL: time.Minute}
	for _, answered := range []bool{true, false} {
		d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
			switch {
			case c.script == "renewHeld":
				return []any{c.args[0], "", "7", ""}, nil
			case !answered:
				return nil, io.EOF
			case c.keys[0] == "k":
				return []any{c.args[0], "gone " + claimA.ID + " 0"}, nil
			}
			return []any{c.args[0], "queued " + other.ID + " 0 1 0"}, nil
		})
		states, err := d.Renew(t.Context(), []driver.Ref{claimA, claimB, other})
		want := []driver.Phase{driver.Gone, driver.Held, driver.Queued}
		if !answered {
			want = []driver.Phase{driver.Unknown, driver.Held, driver.Unknown}
		}
		for i, st := range states {
			if st.Phase != want[i] {
				t.Errorf("answered %v: claim %d is %v, want %v", answered, i, st.Phase, want[i])
			}
		}
		if (err == nil) != answered || (!answered && !errors.Is(err, io.EOF)) {
			t.Error(err)
		}
		h.wantSent(t, "renewHeld", "renewQueue", "renewQueue")
	}
}

// What a renewal learns about the subscription: nothing from claims that do not wait, or that named no channel.
func TestRenewalReportsTheSubscription(t *testing.T) {
	waits, lost := "queued "+claimA.ID+" 0 1 0", "queued "+claimA.ID+" 0 1 0 unsubscribed"
	for _, tc := range []struct {
		name, reply  string
		named        bool
		wrong, reset bool
	}{
		{name: "waits", reply: waits, named: true, reset: true},
		{name: "waits, unnamed", reply: waits},
		{name: "held", reply: "held " + claimA.ID + " 5", named: true},
		{name: "lost", reply: lost, named: true, wrong: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, _ := openScripted(t, nil)
			c := subscribedAt(t, d, 0)
			c.keepFor, c.replaced = 8*time.Second, time.Now().Add(-9*time.Second)
			renewalOf(d, claimA).recordStates(&batch{claims: []int{0}, namedChannel: tc.named}, []any{d.name, tc.reply})
			if c.wrongServer != tc.wrong || (c.keepFor == 0) != tc.reset {
				t.Errorf("at the wrong server: %v, kept for %v", c.wrongServer, c.keepFor)
			}
		})
	}
}

// A renewal that a replica has refused shows that the subscription may be there too.
func TestRenewalRefusedByAReplica(t *testing.T) {
	for said, wrong := range map[string]bool{"READONLY You can't write against a read only replica.": true, "LOADING Redis is loading": false} {
		d, _ := openScripted(t, always(nil, replyError(said)))
		c := subscribedAt(t, d, 0)
		_, err := d.Renew(t.Context(), []driver.Ref{claimA})
		if !errors.Is(err, driver.ErrNotReady) || c.wrongServer != wrong {
			t.Errorf("%s: %v, at the wrong server: %v", said, err, c.wrongServer)
		}
	}
}

// Which scripts are sent again in parts, after which error.
func TestSplitRenewals(t *testing.T) {
	tryAgain, denied := replyError("TRYAGAIN Multiple keys request during rehashing of slot"), replyError("NOPERM No permissions to access a key")
	crossed, several := replyError("CROSSSLOT Keys in request don't hash to the same slot"), []int{3, 4, 5}
	for _, tc := range []struct {
		name  string
		b     batch
		err   error
		parts [][]int
	}{
		{"answered", batch{claims: several}, nil, nil},
		{"moving", batch{claims: several}, tryAgain, [][]int{{3}, {4}, {5}}},
		{"through a proxy", batch{claims: several}, crossed, [][]int{{3}, {4}, {5}}},
		{"a forbidden key", batch{claims: several}, denied, [][]int{{3, 4}, {5}}},
		{"a forbidden key of two", batch{claims: several[:2]}, denied, [][]int{{3}, {4}}},
		{"one claim", batch{claims: several[:1]}, tryAgain, nil},
		{"one lock", batch{claims: several, queued: true}, tryAgain, nil},
		{"one lock that is moving", batch{claims: several, moving: true}, tryAgain, nil},
		{"another error", batch{claims: several}, replyError("LOADING no"), nil},
		{"a forbidden command", batch{claims: several}, replyError("NOPERM User u has no permissions to run the 'evalsha' command"), nil},
		{"no answer", batch{claims: several}, io.EOF, nil},
	} {
		var parts [][]int
		for _, p := range tc.b.split(tc.err) {
			parts = append(parts, p.claims)
			if p.queued || p.moving || p.joint {
				t.Errorf("%s: a part is %+v", tc.name, p)
			}
		}
		if !slices.EqualFunc(parts, tc.parts, slices.Equal) {
			t.Errorf("%s: %v, want %v", tc.name, parts, tc.parts)
		}
	}
}

// While a slot is moving, its claims are renewed without the queue: readers by one script, others by another.
func TestRenewalWithoutTheQueue(t *testing.T) {
	for _, tc := range []struct {
		joint []string
		want  string
	}{{nil, "[0 1] joint false"}, {[]string{claimA.ID}, "[1] joint false, [0] joint true"}, {[]string{claimA.ID, claimB.ID}, "[0 1] joint true"}} {
		r := renewalOf(&redisDriver{joint: map[string]struct{}{}}, claimA, claimB)
		for _, id := range tc.joint {
			r.driver.joint[id] = struct{}{}
		}
		var got []string
		for _, b := range r.withoutQueue(&batch{claims: []int{0, 1}, queued: true}) {
			got = append(got, fmt.Sprintf("%v joint %v", b.claims, b.joint))
			if !b.moving || b.queued {
				t.Errorf("%+v", b)
			}
		}
		if text := strings.Join(got, ", "); text != tc.want {
			t.Errorf("%s, want %s", text, tc.want)
		}
	}
	moves := replyError("TRYAGAIN Multiple keys request during rehashing of slot")
	d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
		if c.script == "renewQueue" {
			return nil, moves
		}
		return []any{c.args[0], "5", ""}, nil
	})
	d.waiting[claimA.ID], d.waiting[claimB.ID] = waiter{key: "k"}, waiter{key: "k"}
	states, err := d.Renew(t.Context(), []driver.Ref{claimA, claimB})
	if states[0].Phase != driver.Held || states[1].Phase != driver.Unknown || !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("%+v, %v", states, err)
	}
	h.wantSent(t, "renewQueue", "renewHeld")
}

// Which claims a driver knows after it has learned the state of one.
func TestKnownClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		learn          func(d *redisDriver)
		waiting, joint int
	}{
		"held":    {func(d *redisDriver) { renewalOf(d, claimA).set(0, driver.State{Phase: driver.Held}) }, 1, 2},
		"gone":    {func(d *redisDriver) { renewalOf(d, claimA).set(0, driver.State{Phase: driver.Gone}) }, 1, 1},
		"queued":  {func(d *redisDriver) { renewalOf(d, claimA).set(0, driver.State{Phase: driver.Queued}) }, 2, 2},
		"unknown": {func(d *redisDriver) { renewalOf(d, claimA).set(0, driver.State{}) }, 2, 2},
		"left":    {func(d *redisDriver) { d.Leave(claimA) }, 1, 1},
	} {
		d := &redisDriver{waiting: map[string]waiter{claimA.ID: {}, claimB.ID: {}}, joint: map[string]struct{}{claimA.ID: {}, claimB.ID: {}}}
		tc.learn(d)
		if Waiting(d) != tc.waiting || Joint(d) != tc.joint {
			t.Errorf("%s: %d wait, and %d are readers", name, Waiting(d), Joint(d))
		}
	}
}
