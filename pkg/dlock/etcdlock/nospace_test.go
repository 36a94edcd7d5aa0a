package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// The transactions with which a server meets its quota are carried out and refused. What was
// refused is not stored when the call returns.
func TestRefusedForSpaceIsNotStored(t *testing.T) {
	t.Parallel()
	refused := 0
	for range testenv.UnderStress(2, 8) {
		server := testenv.Etcd(t, "--quota-backend-bytes", "3000000")
		direct := dial(t, server.Endpoint())
		names := lockUntilFull(t, clientAt(t, server.Endpoint(), dlock.Config{}), direct)
		refused += len(names)
		for _, name := range names {
			if len(storedClaims(t, direct, name)) > 0 {
				t.Errorf("%s was refused, and is stored", name)
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the fault did not happen")
	}
}

// lockUntilFull locks one name after another until the server has no more room, and returns those that
// were refused.
func lockUntilFull(t *testing.T, c *dlock.Client, direct *clientv3.Client) (refused []string) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	value := strings.Repeat("x", 20_000)
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if _, err := direct.Put(context.Background(), fmt.Sprint("fill", w, " ", i), value); err != nil {
					return
				}
			}
		})
	}
	for w := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("k%d-%d", w, i)
				g, err := c.TryAcquire(context.Background(), name)
				if err == nil {
					_ = g.Unlock(context.Background())
					continue
				}
				if !errors.Is(err, etcdlock.ErrNoSpace) {
					t.Error(err)
				}
				if !errors.Is(err, dlock.ErrUnknownOutcome) {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, name)
				}
				return
			}
		})
	}
	wg.Wait()
	return refused
}
