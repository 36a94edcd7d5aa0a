package redislock

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Keys returns the keys of a lock, the lock itself first, and whether they share a cluster slot.
func Keys(prefix, key string) ([]string, bool) {
	_, placed := redisnode.Siblings(prefix + key)
	d := &redisDriver{prefix: prefix}
	d.bySlot.Store(true)
	n, err := d.namesOf(key)
	return []string{n.lock, n.counter, n.queue, n.waiters, n.holders, n.tombstone("id"), n.gap}, placed && err == nil
}

// CounterOf returns the key of the last token of a lock on a single server.
func CounterOf(lock string) string { return counterOf(lock, false) }

// Scripts returns the names and sources of the scripts of an operation.
func Scripts(op string) map[string]string {
	named := map[string]string{}
	for _, s := range map[string][]*redisnode.Script{
		"acquire": {acquireScript, acquireJointScript, acquireBatchScript}, "renew": {renewQueueScript, renewHeldScript, renewJointScript}, "release": {releaseScript, releaseBatchScript}, "inspect": {inspectScript}, "look": {lookScript},
	}[op] {
		named[s.Hash] = s.Source
	}
	return named
}

// InlineOnceAnswered makes cancellable calls inline as soon as the server has answered one, however slow
// the machine is.
func InlineOnceAnswered() Option { return func(s *settings) { s.inlineOnceAnswered = true } }

// AlwaysInline makes cancellable calls inline even after one that was not answered.
func AlwaysInline() Option { return func(s *settings) { s.alwaysInline = true } }

// ReleaseDelay sets how long a release whose caller does not wait is delayed without another call.
func ReleaseDelay(d time.Duration) Option { return func(s *settings) { s.releaseDelay = d } }

// Unanswered reports whether an error says that no answer came in time, or that nothing was sent in time: on a busy
// machine, a call of a correct driver may end so. Every other error is a decision of the server or of the driver.
func Unanswered(err error) bool {
	var reply redis.Error
	if err == nil || errors.As(err, &reply) || errors.Is(err, driver.ErrNotReady) {
		return false
	}
	class := driver.ClassOf(err)
	return class == driver.Ambiguous || (class == driver.Transient && errors.Is(err, driver.ErrUnavailable))
}

// Waiting returns how many claims a driver considers queued.
func Waiting(d driver.Driver) int {
	r, _ := d.(*redisDriver)
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// Joint returns how many readers and permits a driver knows.
func Joint(d driver.Driver) int {
	r, _ := d.(*redisDriver)
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.joint)
}

// NeverInline makes a driver give no call a short attempt timeout, after which the engine would repeat
// it. Tests that call a driver themselves do not.
func NeverInline(d driver.Driver) {
	r, _ := d.(*redisDriver)
	r.shortTimeoutClient = nil
}

// Pending returns how many calls wait to be sent, and InFlight how many round trips are in flight.
func Pending(d driver.Driver) int {
	p := &d.(*redisDriver).pipeliner //nolint:forcetypeassert // it is one
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending)
}

func InFlight(d driver.Driver) int {
	p := &d.(*redisDriver).pipeliner //nolint:forcetypeassert // it is one
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight
}
