package lockreader_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A failingStore counts the keys that are inspected, and fails for all of them.
type failingStore struct {
	*memlock.Store
	inspects atomic.Int64
}

func (s *failingStore) Open(o driver.Options) (driver.Driver, error) {
	d, err := s.Store.Open(o)
	if err != nil {
		return nil, err
	}
	return &failingDriver{d, d.(driver.Admin), s}, nil
}

type failingDriver struct {
	driver.Driver
	driver.Admin
	store *failingStore
}

func (d *failingDriver) Inspect(context.Context, string) ([]driver.Claim, error) {
	d.store.inspects.Add(1)
	return nil, driver.ErrUnavailable
}

// An outage is reported after the first key that fails, not after all of them.
func TestReadStopsAtTheFirstError(t *testing.T) {
	store := &failingStore{Store: memlock.New()}
	client, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin, err := client.Admin()
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, 300)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	entries, err := lockreader.New(admin).Read(t.Context(), keys)
	if entries != nil || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if n := store.inspects.Load(); n == 0 || n >= int64(len(keys)) { // 16 at a time, with retries
		t.Errorf("%d questions for %d keys", n, len(keys))
	}
}
