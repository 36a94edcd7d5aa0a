package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis would log the faults that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Two runs that start at the same time work one after the other.
func TestTurns(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	var all transcript
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := run(t.Context(), &all, server.Addr()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	turn := "the lock is ours\nstep 1 of 3\nstep 2 of 3\nstep 3 of 3\n"
	if got := all.without("waiting"); got != turn+turn {
		t.Errorf("the steps are mixed:\n%s", got)
	}
	client := server.Client()
	defer client.Close()
	if value := client.HGet(t.Context(), "example:result", "value").Val(); value != "done" {
		t.Errorf("the result is %q", value)
	}
}

// The key is deleted during the work.
func TestLoss(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client := server.Client()
	defer client.Close()
	steal := writer(func(line []byte) {
		if bytes.HasPrefix(line, []byte("step 1")) {
			client.Del(t.Context(), "example:report")
		}
	})
	if err := run(t.Context(), steal, server.Addr()); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("error is %v", err)
	}
}

func TestStoreRefusesSmallerTokens(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t).Client()
	defer client.Close()
	ctx := t.Context()
	const first, second = 1_763_186_400_000_001, 1_763_186_400_000_002 // consecutive, and as large as real tokens
	if err := errors.Join(store(ctx, client, first, "a"), store(ctx, client, second, "b"), store(ctx, client, second, "c")); err != nil {
		t.Fatal(err)
	}
	if err := store(ctx, client, first, "late"); err == nil {
		t.Error("a late write went through")
	}
	if value := client.HGet(ctx, "example:result", "value").Val(); value != "c" {
		t.Errorf("the result is %q", value)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), io.Discard, "localhost:1")
	if !errors.Is(err, connector.ErrUnreachable) || !strings.Contains(err.Error(), "redis-server") {
		t.Errorf("error is %v", err)
	}
}

type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) { w(line); return len(line), nil }

// A transcript collects what several goroutines write, in order.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(line)
}

// without returns the transcript without the tokens and without the lines that begin with prefix.
func (t *transcript) without(prefix string) string {
	var kept strings.Builder
	for line := range strings.Lines(t.text.String()) {
		if !strings.HasPrefix(line, prefix) {
			line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), ",")
			kept.WriteString(line + "\n")
		}
	}
	return kept.String()
}
