package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A release that leaves dead waiters is continued until the script has nothing left, and not after an error or a panic.
func TestReleaseIsContinued(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ends  func() (any, error)
		calls int
	}{
		{"done", func() (any, error) { return []any{"me"}, nil }, 3},
		{"an error", func() (any, error) { return nil, replyError("OOM no") }, 3},
		{"a panic", func() (any, error) { panic("hook") }, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
				switch {
				case c.script == "release":
					return "held " + claimA.ID + " 0 more", nil
				case c.n < tc.calls:
					return []any{"me", "more"}, nil
				}
				return tc.ends()
			})
			st, err := d.Release(t.Context(), claimA)
			if st.Phase != driver.Held || err != nil {
				t.Errorf("%+v, %v", st, err)
			}
			d.work.Wait()
			h.wantSent(t, "release", "renewQueue", "renewQueue", "renewQueue")
			if args := h.calls[1].args; !slices.Equal(args, []string{d.name, noChannel}) {
				t.Errorf("continued with %q", args)
			}
		})
	}
}

// What is sent with a release.
func TestArgumentsOfARelease(t *testing.T) {
	unanswered := claimA
	unanswered.Unanswered = true
	for _, tc := range []struct {
		name    string
		opts    []Option
		release func(d *redisDriver) (driver.State, error)
		keys    int
		want    []string
	}{
		{"plain", nil, func(d *redisDriver) (driver.State, error) { return d.Release(t.Context(), claimA) }, 5, []string{claimA.ID + "."}},
		{"with a tombstone", nil, func(d *redisDriver) (driver.State, error) { return d.Release(t.Context(), unanswered) }, 7, []string{claimA.ID + ".", "60000", "0", ""}},
		{"evicted", nil, func(d *redisDriver) (driver.State, error) { return d.Evict(t.Context(), "k", claimA.ID, 5) }, 7, []string{claimA.ID + ".", "0", "0", "5"}},
		{"with a gap", []Option{WithPlainClients(20 * time.Millisecond)}, func(d *redisDriver) (driver.State, error) { return d.Release(t.Context(), claimA) }, 7, []string{claimA.ID + ".", "0", "20", ""}},
	} {
		d, h := openScripted(t, always("held "+claimA.ID+" 0", nil), tc.opts...)
		d.waiting[claimA.ID] = waiter{}
		if st, err := tc.release(d); st.Phase != driver.Held || err != nil {
			t.Errorf("%s: %+v, %v", tc.name, st, err)
		}
		if c := h.calls[0]; len(c.keys) != tc.keys || !slices.Equal(c.args, tc.want) {
			t.Errorf("%s: %d keys and %q, want %d and %q", tc.name, len(c.keys), c.args, tc.keys, tc.want)
		}
		if Waiting(d) != 0 {
			t.Errorf("%s: a released claim waits", tc.name)
		}
	}
	d, h := openScripted(t, nil)
	if st, err := d.Evict(t.Context(), "k", "of a plain client", 5); st.Phase != driver.Gone || err != nil {
		t.Errorf("%+v, %v", st, err)
	}
	h.wantSent(t)
}

// A release whose caller does not wait is sent after its delay, which later ones do not prolong; or when it is asked for; or ended by Close.
func TestDelayedReleases(t *testing.T) {
	refs := []driver.Ref{claimA, {Key: "other", ID: idOf("b"), TTL: time.Minute}, {Key: "third", ID: idOf("c"), TTL: time.Minute}}
	open := func(t *testing.T, delay time.Duration) (d *redisDriver, h *scripted, release func(i int), ends func() []error) {
		d, h = openScripted(t, func(_ context.Context, c sent) (any, error) { return "held " + c.args[0][:idLength] + " 0", nil }, ReleaseDelay(delay))
		var mu sync.Mutex
		var all []error
		return d, h, func(i int) {
				d.waiting[refs[i].ID] = waiter{}
				d.ReleaseLater(refs[i], func(_ driver.State, err error) {
					mu.Lock()
					defer mu.Unlock()
					all = append(all, err)
				})
				if Waiting(d) != 0 {
					t.Error("a released claim waits")
				}
			}, func() []error {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(all)
			}
	}
	synctest.Test(t, func(t *testing.T) {
		_, h, release, ends := open(t, time.Second)
		wait := func(d time.Duration, sent int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if len(h.sentScripts()) != sent || len(ends()) != sent {
				t.Errorf("%d are sent, and %d have ended, want %d", len(h.sentScripts()), len(ends()), sent)
			}
		}
		release(0)
		wait(900*time.Millisecond, 0)
		release(1)
		wait(99*time.Millisecond, 0)
		wait(2*time.Millisecond, 2)
		release(2)
		wait(998*time.Millisecond, 2)
		wait(3*time.Millisecond, 3)
	})
	synctest.Test(t, func(t *testing.T) {
		d, h, release, ends := open(t, time.Hour)
		release(0)
		d.SendReleases()
		synctest.Wait()
		h.wantSent(t, "release")
		d.SendReleases()
		release(1)
		if err := d.Close(); err != nil || len(ends()) != 2 || ends()[0] != nil || !errors.Is(ends()[1], context.Canceled) {
			t.Errorf("%v, %v", err, ends())
		}
		release(2)
		if len(ends()) != 3 || !errors.Is(ends()[2], context.Canceled) {
			t.Errorf("after Close: %v", ends())
		}
		h.wantSent(t, "release")
	})
	d := &redisDriver{cluster: &redis.ClusterClient{}}
	var ends []error
	d.ReleaseLater(driver.Ref{Key: "a}b"}, func(_ driver.State, err error) { ends = append(ends, err) })
	if len(ends) != 1 || !errors.Is(ends[0], driver.ErrInvalidKey) {
		t.Errorf("a name that cannot be used: %v", ends)
	}
}

// A delayed release is sent before the call that follows, in one pipeline, and each has its own answer.
func TestReleaseBeforeTheNextCall(t *testing.T) {
	for name, opts := range map[string][]Option{"inline": {inlineAlways}, "by another goroutine": nil} {
		d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
			if c.script == "release" {
				return nil, replyError("OOM no")
			}
			return "held " + claimA.ID + " 5", nil
		}, append(opts, ReleaseDelay(time.Hour))...)
		ended := make(chan error, 1)
		d.ReleaseLater(claimB, func(_ driver.State, err error) { ended <- err })
		st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA})
		if st.Phase != driver.Held || err != nil {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
		if err := <-ended; !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%s: the release ends with %v", name, err)
		}
		h.wantSent(t, "release", "acquire")
	}
}
