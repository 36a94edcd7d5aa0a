package container_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The backend redlock is built from its section, and closed with the container.
func TestRedlock(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, testenv.Redis(t).Addr())
	}
	t.Setenv("GENESIS_DLOCK_BACKEND", "redlock")
	cfg, err := container.Load("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := container.New(cfg); !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), "section redlock") {
		t.Errorf("without its section: %v", err)
	}
	t.Setenv("GENESIS_REDLOCK_ADDRS", strings.Join(addrs[:2], ","))
	if cfg, err = container.Load(""); err != nil {
		t.Fatal(err)
	}
	if _, err := container.New(cfg); !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), "Addrs are 2") {
		t.Errorf("with two servers: %v", err)
	}
	t.Setenv("GENESIS_REDLOCK_ADDRS", strings.Join(addrs, ","))
	if cfg, err = container.Load(""); err != nil {
		t.Fatal(err)
	}
	app, err := container.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Connect(t.Context()); err != nil {
		t.Error(err)
	}
	if ok, err := app.DLock.TryLock(t.Context(), "k"); !ok || err != nil || app.Redlock == nil || app.Redis != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if err := app.Close(); err != nil {
		t.Error(err)
	}
	if _, err := app.DLock.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
