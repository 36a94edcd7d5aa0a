package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

func inlineAlways(s *settings) { s.alwaysInline = true }

// How an inline call ends: an answer counts although it is late, an error of the connection is that of the call, and
// only a call that has taken its time ends with the reason for that.
func TestEndsOfAnInlineCall(t *testing.T) {
	for _, tc := range []struct {
		name          string
		limit         time.Duration // of the caller; 0: none
		cancel        time.Duration // when the caller leaves; 0: never
		takes         time.Duration // until the answer; 0: until the context of the call ends
		answer        error
		uncancellable bool
		want          error
		took          time.Duration
	}{
		{name: "late answer", takes: time.Second, took: time.Second},
		{name: "late refusal", takes: time.Second, answer: replyError("OOM no"), want: ErrOutOfMemory, took: time.Second},
		{name: "broken at once", takes: time.Millisecond, answer: io.EOF, want: io.EOF, took: time.Millisecond},
		{name: "attempt timeout", want: sharedtimeout.ErrAttemptTimeout, took: attemptTimeout},
		{name: "attempt timeout before the deadline", limit: time.Minute, want: sharedtimeout.ErrAttemptTimeout, took: attemptTimeout},
		{name: "deadline", limit: 5 * time.Millisecond, want: context.DeadlineExceeded, took: 5 * time.Millisecond},
		{name: "the caller has left", cancel: time.Millisecond, want: context.Canceled, took: attemptTimeout},
		{name: "uncancellable", takes: time.Second, answer: io.EOF, uncancellable: true, want: io.EOF, took: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h := openScripted(t, func(ctx context.Context, _ sent) (any, error) {
					if tc.takes == 0 {
						<-ctx.Done()
						return nil, os.ErrDeadlineExceeded // as the network says
					}
					time.Sleep(tc.takes)
					return "held " + claimA.ID + " 5", tc.answer
				}, inlineAlways)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.limit > 0 {
					ctx, cancel = context.WithTimeout(ctx, tc.limit)
					defer cancel()
				}
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, cancel)
				}
				if tc.uncancellable {
					ctx = sharedtimeout.Uncancelled{Context: ctx, Values: ctx}
				}
				began := time.Now()
				st, err := d.Acquire(ctx, driver.Request{Ref: claimA})
				if !errors.Is(err, tc.want) || (err == nil) != (st.Phase == driver.Held) || (err == nil) != (tc.want == nil) {
					t.Errorf("%+v, %v", st, err)
				}
				again := sharedtimeout.ErrAttemptTimeout
				if errors.Is(err, again) != errors.Is(tc.want, again) {
					t.Errorf("the engine would repeat it: %v", err)
				}
				if took := time.Since(began); took < tc.took*3/4 || took > tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				if d.pipeliner.inFlight != 0 {
					t.Errorf("%d round trips are in flight", d.pipeliner.inFlight)
				}
				h.wantSent(t, "acquire")
			})
		})
	}
}

// A server that does not know a script gets it in full, once. One that is no longer the master is asked again only as often as there are
// connections that may lead to it.
func TestRefusedCallsAreSentAgain(t *testing.T) {
	unknown, readOnly := replyError("NOSCRIPT No matching script"), replyError("READONLY You can't write against a read only replica.")
	held := "held " + claimA.ID + " 5"
	for _, tc := range []struct {
		name    string
		answers []any
		err     error
		sent    []string
		wrong   bool // the subscription may be at the wrong server
	}{
		{"unknown", []any{unknown, held}, nil, []string{"acquire", "whole acquire"}, false},
		{"unknown twice", []any{unknown, unknown}, unknown, []string{"acquire", "whole acquire"}, false},
		{"a replica", []any{readOnly, held}, nil, []string{"acquire", "acquire"}, true},
		{"a replica still", []any{readOnly, readOnly}, driver.ErrNotReady, []string{"acquire", "acquire"}, true},
		{"a replica that does not know it", []any{unknown, readOnly, held}, nil, []string{"acquire", "whole acquire", "whole acquire"}, true},
		{"no answer", []any{io.EOF}, io.EOF, []string{"acquire"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
				err, failed := tc.answers[c.n].(error)
				if failed {
					return nil, err
				}
				return tc.answers[c.n], nil
			})
			conn := subscribedAt(t, d, 0)
			st, err := d.Acquire(t.Context(), driver.Request{Ref: claimA})
			if !errors.Is(err, tc.err) || (err == nil) != (st.Token == 5) {
				t.Errorf("%+v, %v", st, err)
			}
			if conn.wrongServer != tc.wrong {
				t.Errorf("the subscription is suspected: %v", conn.wrongServer)
			}
			h.wantSent(t, tc.sent...)
		})
	}
}

// With replicas that must confirm, and for renewals, a script that the server does not know is sent in full too.
func TestUnknownScriptInAPipeline(t *testing.T) {
	acquire := func(t *testing.T, d *redisDriver) (driver.State, error) {
		t.Helper()
		return d.Acquire(t.Context(), driver.Request{Ref: claimA})
	}
	renew := func(t *testing.T, d *redisDriver) (driver.State, error) {
		t.Helper()
		states, err := d.Renew(t.Context(), []driver.Ref{claimA})
		return states[0], err
	}
	for _, tc := range []struct {
		name, script string
		call         func(*testing.T, *redisDriver) (driver.State, error)
		opts         []Option
	}{
		{"acquire with replicas", "acquire", acquire, []Option{WithMinReplicas(1, time.Second)}},
		{"renew", "renewHeld", renew, nil},
		{"renew with replicas", "renewHeld", renew, []Option{WithMinReplicas(1, time.Second)}},
	} {
		for _, always := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s always=%v", tc.name, always), func(t *testing.T) {
				d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
					switch {
					case c.n == 0 || always:
						return nil, replyError("NOSCRIPT No matching script")
					case tc.script == "renewHeld":
						return []any{c.args[0], "5"}, nil
					}
					return "held " + claimA.ID + " 5", nil
				}, tc.opts...)
				h.replicas = 1
				st, err := tc.call(t, d)
				if (err == nil) == always || (st.Phase == driver.Held) == always {
					t.Errorf("%+v, %v", st, err)
				}
				times := 1
				if always { // a server that never knows it is asked a limited number of times
					times = maxTrips - 1
				}
				h.wantSent(t, append([]string{tc.script}, slices.Repeat([]string{"whole " + tc.script}, times)...)...)
			})
		}
	}
}
