package redlock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lock that was left stays locked until its lease ends, although its Client is closed, and is free afterwards.
func TestLeftLockEndsWithItsLease(t *testing.T) {
	t.Parallel()
	nodes := start(t, 3)
	first, second := nodes.locks(t, dlock.Config{}), nodes.locks(t, dlock.Config{})
	asked := time.Now()
	g := acquire(t, first, "k", dlock.WithTTL(4*time.Second), dlock.WithoutRenewal())
	check(t, g.Leave())
	closeLocks(t, first)
	next := acquire(t, second, "k")
	if waited := time.Since(asked); waited < 4*time.Second {
		t.Errorf("the key was free after %v", waited)
	}
	if next.Token() <= g.Token() {
		t.Errorf("token %d after %d", next.Token(), g.Token())
	}
	unlock(t, next)
}
