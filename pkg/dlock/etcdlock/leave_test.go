package etcdlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lock that was left stays locked until its lease ends, although its Client is closed, and is free afterwards.
func TestLeftLockEndsWithItsLease(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	for _, mode := range [][]dlock.LockOption{nil, {dlock.WithShared()}} {
		key := fmt.Sprintf("k%d", len(mode))
		first := locksAt(t, endpoint)
		asked := time.Now()
		g := acquire(t, first, key, append(mode, dlock.WithTTL(4*time.Second), dlock.WithoutRenewal())...)
		check(t, g.Leave())
		began := time.Now()
		err := first.Close()
		if !hazardtest.GaveUp(t, err, began) {
			check(t, err)
		}
		second := locksAt(t, endpoint)
		next := acquire(t, second, key)
		if waited := time.Since(asked); waited < 4*time.Second {
			t.Errorf("the key was free after %v", waited)
		}
		if next.Token() <= g.Token() {
			t.Errorf("token %d after %d", next.Token(), g.Token())
		}
		unlock(t, next)
	}
}
