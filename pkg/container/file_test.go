package container_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The backend file is built from its section, and two services with one directory exclude each
// other.
func TestFile(t *testing.T) {
	t.Setenv("GENESIS_DLOCK_BACKEND", "file")
	fails := func(want string) {
		t.Helper()
		cfg, err := container.Load("")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := container.New(cfg); !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	fails("section file")
	t.Setenv("GENESIS_FILE_DIR", "relative")
	fails("absolute")
	t.Setenv("GENESIS_FILE_DIR", t.TempDir()+"/locks")
	var apps []*container.Container
	for range 2 {
		cfg, err := container.Load("")
		if err != nil {
			t.Fatal(err)
		}
		app, err := container.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = app.Close() }()
		apps = append(apps, app)
	}
	if err := apps[0].Connect(t.Context()); err != nil {
		t.Error(err)
	}
	if err := apps[0].DLock.Lock(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if ok, err := apps[1].DLock.TryLock(t.Context(), "k"); ok || err != nil {
		t.Errorf("TryLock of another service: %v, %v", ok, err)
	}
	if _, err := apps[1].DLock.TryAcquire(t.Context(), "k"); !errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Error(err)
	}
}
