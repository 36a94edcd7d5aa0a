package redislock

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

var (
	claimA = driver.Ref{Key: "k", ID: idOf("a"), TTL: time.Minute}
	claimB = driver.Ref{Key: "k", ID: idOf("b"), TTL: time.Minute}
)

// What is sent with a claim: its lease, its heartbeat only if it waits, the channel only if pushes reach it, its tokens and its mode.
func TestArgumentsOfAClaim(t *testing.T) {
	for _, tc := range []struct {
		name       string
		r          driver.Request
		subscribed bool
		script     string
		want       []string // after the ID, with "channel" for the driver's channel
	}{
		{name: "plain", script: "acquire", want: []string{"60000", "0", "channel {}"}},
		{name: "one token", r: driver.Request{Tokens: 1}, script: "acquire", want: []string{"60000", "0", "channel {}"}},
		{name: "two tokens", r: driver.Request{Tokens: 2}, script: "acquire", want: []string{"60000", "0", "channel {}", "2"}},
		{name: "waits", r: driver.Request{Wait: true}, subscribed: true, script: "acquire", want: []string{"60000", "3000", "channel {}"}},
		{name: "reader", r: driver.Request{Mode: driver.Shared}, script: "acquireJoint", want: []string{"60000", "0", "channel {}", "1", "s"}},
		{name: "permit", r: driver.Request{Mode: driver.Permit, Limit: 12, Tokens: 3}, script: "acquireJoint", want: []string{"60000", "0", "channel {}", "3", "p12"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, h := openScripted(t, always("gone "+claimA.ID+" 0", nil))
			if tc.subscribed {
				subscribedAt(t, d, 0)
			}
			tc.r.Ref = claimA
			st, err := d.Acquire(t.Context(), tc.r)
			if err != nil || st.Phase != driver.Gone {
				t.Errorf("%+v, %v", st, err)
			}
			h.wantSent(t, tc.script)
			want := append([]string{claimA.ID}, tc.want...)
			for i := range want {
				want[i] = strings.ReplaceAll(want[i], "channel", d.channelFor(""))
			}
			if got := h.calls[0].args; !slices.Equal(got, want) {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

// A claim that is queued while pushes do not reach the process says so: it is not passed over.
func TestUnsubscribedClaimNamesNoChannel(t *testing.T) {
	d, h := openScripted(t, always("queued "+claimA.ID+" 0 1 0", nil))
	subscribedAt(t, d, 0).slots[0].confirmed = false
	_, err := d.Acquire(t.Context(), driver.Request{Ref: claimA, Wait: true})
	if err != nil || h.calls[0].args[3] != noChannel+" {}" {
		t.Errorf("%q, %v", h.calls[0].args, err)
	}
	if Waiting(d) != 1 {
		t.Error("it is not known to wait")
	}
}

// A claim that waits needs a subscription, whichever answer says that it is queued.
func TestQueuedClaimSubscribes(t *testing.T) {
	d, _ := openScripted(t, nil)
	d.record(driver.Request{Ref: claimA}, "k", driver.Held)
	if d.subscriptions.ready(0) || len(d.subscriptions.slots) != 0 {
		t.Error("subscribed for a claim that holds its lock")
	}
	d.record(driver.Request{Ref: claimA}, "k", driver.Queued)
	if len(d.subscriptions.slots) != 1 || Waiting(d) != 1 {
		t.Error("not subscribed for a claim that waits")
	}
	d.record(driver.Request{Ref: claimA}, "k", driver.Held)
	if Waiting(d) != 0 {
		t.Error("a claim that holds its lock waits")
	}
}

// A call that cannot be made is an error, and nothing is sent.
func TestClaimsThatAreNotSent(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, opts := range [][]Option{nil, {WithMinReplicas(1, time.Second)}} {
		d, h := openScripted(t, always("held "+claimA.ID+" 1", nil), opts...)
		if st, err := d.Acquire(ended, driver.Request{Ref: claimA}); !errors.Is(err, context.Canceled) || driver.ClassOf(err) != driver.Transient {
			t.Errorf("ended: %+v, %v", st, err)
		}
		if st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA, Mode: 99}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("of another mode: %+v, %v", st, err)
		}
		if st, err := d.Release(ended, claimA); !errors.Is(err, context.Canceled) || driver.ClassOf(err) != driver.Transient {
			t.Errorf("a release: %+v, %v", st, err)
		}
		if states, err := d.Renew(ended, []driver.Ref{claimA}); !errors.Is(err, context.Canceled) || len(states) != 0 {
			t.Errorf("a renewal: %+v, %v", states, err)
		}
		if states, err := d.Renew(t.Context(), nil); err != nil || len(states) != 0 {
			t.Errorf("a renewal of nothing: %+v, %v", states, err)
		}
		h.wantSent(t)
	}
}

// The first claim of a process is submitted twice if the lock is taken: without waiting, until the process is subscribed, and then to wait.
func TestFirstClaimThatWaits(t *testing.T) {
	gone, full := "gone "+claimA.ID+" 0", "full "+claimA.ID+" 100000"
	for _, tc := range []struct {
		name    string
		answers []any // replies or errors
		ends    bool  // the caller leaves during the last
		phase   driver.Phase
		err     error
		class   driver.Class
	}{
		{name: "held at once", answers: []any{"held " + claimA.ID + " 5"}, phase: driver.Held},
		{name: "refused at once", answers: []any{replyError("OOM no")}, err: ErrOutOfMemory, class: driver.Transient},
		{name: "queued", answers: []any{gone, "queued " + claimA.ID + " 0 1 0"}, phase: driver.Queued},
		{name: "refused then", answers: []any{gone, full}, err: ErrQueueFull, class: driver.Transient},
		{name: "not answered then", answers: []any{gone, io.EOF}, err: io.EOF},
		{name: "not answered before the caller left", answers: []any{gone, io.EOF}, ends: true, err: io.EOF},
		{name: "refused before the caller left", answers: []any{gone, full}, ends: true, phase: driver.Gone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				// Calls are inline, so that the answer counts even if the caller has left.
				d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
					if tc.ends && c.n == len(tc.answers)-1 {
						cancel()
					}
					err, failed := tc.answers[c.n].(error)
					if failed {
						return nil, err
					}
					return tc.answers[c.n], nil
				}, func(s *settings) { s.alwaysInline = true })
				st, err := d.Acquire(ctx, driver.Request{Ref: claimA, Wait: true})
				if st.Phase != tc.phase || !errors.Is(err, tc.err) || (err != nil && driver.ClassOf(err) != tc.class) {
					t.Errorf("%+v, %v, class %v", st, err, driver.ClassOf(err))
				}
				if len(h.calls) != len(tc.answers) {
					t.Fatalf("sent %q", h.sentScripts())
				}
				for i, c := range h.calls {
					if waits := c.args[2] != "0"; waits != (i == 1) {
						t.Errorf("call %d has heartbeat %q", i, c.args[2])
					}
				}
				if len(h.calls) > 1 && !d.subscriptions.ready(0) {
					t.Error("queued before the first attempt to subscribe has ended")
				}
			})
		})
	}
}

// A script that drops dead waiters is called again, but not forever.
func TestClaimBehindDeadWaiters(t *testing.T) {
	d, h := openScripted(t, always("again "+claimA.ID+" 0", nil))
	_, err := d.Acquire(t.Context(), driver.Request{Ref: claimA})
	if !errors.Is(err, driver.ErrNotReady) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("%v, class %v", err, driver.ClassOf(err))
	}
	if len(h.calls) != maxRepeats || Waiting(d) != 0 {
		t.Errorf("%d calls", len(h.calls))
	}
	drops, longest := scriptConstant(t, "MAX_DROPS"), scriptConstant(t, "MAX_WAITERS")
	if maxRepeats*drops < 2*longest {
		t.Errorf("%d calls drop %d dead waiters, and a queue has up to %d", maxRepeats, maxRepeats*drops, longest)
	}
}

// scriptConstant returns a constant of the script that submits claims.
func scriptConstant(t *testing.T, name string) (n int) {
	t.Helper()
	found := regexp.MustCompile(`\b` + name + `(?:, \w+)* = (\d+)`).FindStringSubmatch(acquireScript.Source)
	if found == nil {
		t.Fatalf("there is no %s", name)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A claim is submitted once, and once more if it shows that there is a cluster.
func TestSubmittedOnce(t *testing.T) {
	d, h := openScripted(t, always("held "+claimA.ID+" 5", nil))
	if st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA}); err != nil || st.Token != 5 {
		t.Errorf("%+v, %v", st, err)
	}
	h.wantSent(t, "acquire")

	d, h = openScripted(t, always(nil, replyError("CROSSSLOT Keys in request don't hash to the same slot")))
	for i, want := range []int{2, 3, 4} {
		var err error
		if i < 2 {
			_, err = d.Acquire(t.Context(), driver.Request{Ref: claimA})
		} else {
			_, err = d.Release(t.Context(), claimA)
		}
		if !errors.Is(err, driver.ErrInvalidKey) || len(h.calls) != want {
			t.Errorf("%v after %d calls, want %d", err, len(h.calls), want)
		}
	}
	if by, one := h.calls[1].keys[1], h.calls[0].keys[1]; by != counterOf("k", true) || one != counterOf("k", false) {
		t.Errorf("counters %q and %q", one, by)
	}
}

// With too few replicas, a claim that holds the lock is released, and one that waits is not.
func TestTooFewReplicas(t *testing.T) {
	for _, tc := range []struct {
		name, reply string
		release     any // its answer
		phase       driver.Phase
		class       driver.Class
		retired     bool
		sent        []string
	}{
		{name: "queued", reply: "queued " + claimA.ID + " 0 1 0", phase: driver.Queued, sent: []string{"acquire"}},
		{name: "gone", reply: "gone " + claimA.ID + " 0", phase: driver.Gone, sent: []string{"acquire"}},
		{name: "held", reply: "held " + claimA.ID + " 5", release: "held " + claimA.ID + " 5", class: driver.Transient, sent: []string{"acquire", "release"}},
		{name: "not released", reply: "held " + claimA.ID + " 5", release: replyError("LOADING no"), sent: []string{"acquire", "release"}},
		{name: "perhaps released", reply: "held " + claimA.ID + " 5", release: io.EOF, retired: true, sent: []string{"acquire", "release"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
				if c.script != "release" {
					return tc.reply, nil
				}
				err, failed := tc.release.(error)
				if failed {
					return nil, err
				}
				return tc.release, nil
			}, WithMinReplicas(2, time.Second))
			h.replicas = 1
			subscribedAt(t, d, 0)
			st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA, Wait: true})
			if st.Phase != tc.phase || errors.Is(err, ErrTooFewReplicas) != (tc.phase == driver.Unknown) || driver.ClassOf(err) != tc.class && err != nil {
				t.Errorf("%+v, %v, class %v", st, err, driver.ClassOf(err))
			}
			if d.isRetired(claimA.ID) != tc.retired {
				t.Errorf("its ID is retired: %v", !tc.retired)
			}
			h.wantSent(t, tc.sent...)
			if !tc.retired {
				return
			}
			if st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA}); st.Phase != driver.Gone || err != nil {
				t.Errorf("submitted again: %+v, %v", st, err)
			}
			h.wantSent(t, tc.sent...)
		})
	}
}

// A grant counts if as many replicas as needed have confirmed it, and not if WAIT has failed.
func TestEnoughReplicas(t *testing.T) {
	for _, tc := range []struct {
		replicas int64
		waitErr  error
		held     bool
	}{{2, nil, true}, {3, nil, true}, {1, nil, false}, {2, io.EOF, false}} {
		d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
			if c.script == "renewHeld" {
				return []any{c.args[0], "5"}, nil
			}
			return "held " + claimA.ID + " 5", nil
		}, WithMinReplicas(2, time.Second))
		h.replicas, h.waitErr = tc.replicas, tc.waitErr
		st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA})
		if (st.Phase == driver.Held) != tc.held || (err == nil) != tc.held {
			t.Errorf("%+v: %+v, %v", tc, st, err)
		}
		states, err := d.Renew(t.Context(), []driver.Ref{claimA})
		if (states[0].Phase == driver.Unknown) != !tc.held || (err == nil) != tc.held {
			t.Errorf("%+v: renewed, %+v, %v", tc, states, err)
		}
	}
}

// Options that are out of range are refused, and those at the limits are not.
func TestLimitsOfOptions(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	for name, tc := range map[string]struct {
		opt Option
		ok  bool
	}{
		"nil":                {nil, false},
		"negative time":      {WithMinReplicas(0, -1), false},
		"a day":              {WithMinReplicas(1, 24*time.Hour), true},
		"more than a day":    {WithMinReplicas(1, 24*time.Hour+1), false},
		"no replicas":        {WithMinReplicas(0, 0), true},
		"the longest gap":    {WithPlainClients(3 * time.Second), true},
		"more than that gap": {WithPlainClients(3*time.Second + 1), false},
		"no gap":             {WithPlainClients(0), true},
	} {
		d, err := New(client, tc.opt, WithPlainClients(0)).Open(driver.Options{})
		if name == "the longest gap" || name == "more than that gap" {
			d, err = New(client, tc.opt).Open(driver.Options{})
		}
		if (err == nil) != tc.ok || (err != nil && !errors.Is(err, xerrors.ErrInvalidConfig)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = d.Close()
		}
	}
}

// Which clients a driver uses, and with which timeouts.
func TestClientsOfADriver(t *testing.T) {
	for _, honors := range []bool{true, false} {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: honors, ReadTimeout: time.Hour})
		cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: honors})
		for _, rdb := range []redis.UniversalClient{client, cluster} {
			opened, err := New(rdb, WithMinReplicas(1, 2*time.Second)).Open(driver.Options{})
			if err != nil {
				t.Fatal(err)
			}
			d, _ := opened.(*redisDriver)
			if d.honorsDeadline != honors || (d.cluster != nil) != (rdb == redis.UniversalClient(cluster)) || d.bySlot.Load() != (d.cluster != nil) {
				t.Errorf("%T: honors %v, cluster %v, by slot %v", rdb, d.honorsDeadline, d.cluster != nil, d.bySlot.Load())
			}
			if d.cluster != nil {
				if (d.shortTimeoutClient != nil) != honors {
					t.Errorf("calls on a cluster are made inline: %v", !honors)
				}
			} else {
				read, short := time.Hour, time.Hour
				if !honors {
					read, short = tripTimeout, attemptTimeout
				}
				for name, got := range map[string][2]time.Duration{
					"calls":          {d.client.(*redis.Client).Options().ReadTimeout, read},
					"inline calls":   {d.shortTimeoutClient.(*redis.Client).Options().ReadTimeout, short},
					"replicas":       {d.replicaClient.(*redis.Client).Options().ReadTimeout, tripTimeout + 2*time.Second},
					"those of nodes": {d.forReplicas(client).(*redis.Client).Options().ReadTimeout, tripTimeout + 2*time.Second},
				} {
					if got[0] != got[1] {
						t.Errorf("honors %v: %s have %v, want %v", honors, name, got[0], got[1])
					}
				}
			}
			_ = d.Close()
		}
		_, _ = client.Close(), cluster.Close()
	}
}

// A wait for replicas leaves a quarter of what is left of the call, or one trip if that is less, and is never 0.
func TestTimeForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &redisDriver{settings: settings{replicaWait: 10 * time.Second}}
		for left, want := range map[time.Duration]time.Duration{
			0: time.Millisecond, time.Second: 750 * time.Millisecond, 2 * time.Second: 1500 * time.Millisecond, 8 * time.Second: 7250 * time.Millisecond, time.Hour: 10 * time.Second,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			if got := d.replicaWait(ctx); got != want {
				t.Errorf("with %v left it is %v, want %v", left, got, want)
			}
			cancel()
		}
		if got := d.replicaWait(t.Context()); got != 10*time.Second {
			t.Errorf("without a deadline it is %v", got)
		}
	})
}
