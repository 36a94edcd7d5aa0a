package filelock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

func client(t *testing.T, dir string) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&dlock.Config{Backend: "file"}, dlock.WithBackend(filelock.New(dir)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The whole path through the engine, between two Clients.
func TestClient(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	a, b := client(t, dir), client(t, dir)
	g, err := a.Acquire(ctx, "order:1", dlock.WithInfo(dlock.Info{Owner: "api-7"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryAcquire(ctx, "order:1"); !errors.Is(err, dlock.ErrLockHeldByOther) || !strings.Contains(err.Error(), "api-7") {
		t.Errorf("TryAcquire: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(short, "order:1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: %v", err)
	}
	got := make(chan *dlock.Guard)
	go func() {
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		g, err := b.Acquire(limited, "order:1")
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	<-time.After(20 * time.Millisecond)
	if err := g.Unlock(ctx); err != nil {
		t.Error(err)
	}
	next := <-got
	if next == nil {
		t.FailNow()
	}
	if next.Token() <= g.Token() {
		t.Errorf("token %d after %d", next.Token(), g.Token())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if ok, err := a.TryLock(ctx, "order:1"); !ok || err != nil {
		t.Errorf("TryLock after the other Client was closed: %v, %v", ok, err)
	}
}

// A guard ends when its file is removed.
func TestGuardOfRemovedFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	g, err := client(t, dir).Acquire(ctx, "k", dlock.WithTTL(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, filelock.Name("k"))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.Done():
	case <-time.After(time.Minute):
		t.Fatal("the guard lives on")
	}
	if err := g.Unlock(ctx); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Unlock: %v", err)
	}
}
