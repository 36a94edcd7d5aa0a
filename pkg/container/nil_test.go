package container_test

import (
	"errors"
	"testing"

	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A nil Config is ErrConfigNil to each of its methods, and a nil FileConfig a Store that does
// not open.
func TestNilConfigs(t *testing.T) {
	var cfg *container.Config
	if _, err := cfg.LockConfig(); !errors.Is(err, container.ErrConfigNil) {
		t.Errorf("Locks: %v", err)
	}
	var files *container.FileConfig
	if _, err := dlock.New(&dlock.Config{}, dlock.WithBackend(files.Store())); !errors.Is(err, dlock.ErrInvalidConfig) {
		t.Errorf("Store: %v", err)
	}
}
