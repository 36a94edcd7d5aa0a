package dlock

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A LockOption changes one acquisition.
type LockOption func(*lockSettings)

// WithTTL sets the lease: how long the lock outlives its process. While the process
// lives, the lock is renewed every third of the TTL.
func WithTTL(ttl time.Duration) LockOption {
	return func(s *lockSettings) { s.ttl, s.hasTTL = ttl, true }
}

// WithWait limits the wait for the key, in addition to the context. After that time the
// call returns ErrLockHeldByOther, or the error of the backend if that is why it did not get the lock.
// 0 means to try once.
func WithWait(longest time.Duration) LockOption {
	return func(s *lockSettings) { s.wait, s.hasWait = longest, true }
}

// WithInfo sets the description of the holder that Inspect returns and errors name. Empty fields
// keep the defaults: the program's name, the host's name, the process ID.
func WithInfo(info Info) LockOption {
	return func(s *lockSettings) {
		s.info = driver.Info{Owner: info.Owner, Host: info.Host, PID: info.PID, Purpose: info.Purpose}
	}
}

// WithoutRenewal turns renewal off: the lock ends with its TTL unless Extend is called.
func WithoutRenewal() LockOption {
	return func(s *lockSettings) { s.noRenew = true }
}

// WithOwnLease gives the lock a lease that it shares with no other lock, so that other data can be attached
// to it: see Guard.LeaseID. The lock keeps its TTL: Extend accepts no other. If the backend has no such leases, the
// call returns ErrUnsupported; only etcd has them.
func WithOwnLease() LockOption {
	return func(s *lockSettings) { s.ownLease = true }
}

// WithMinHold keeps the key locked for at least this long after it was acquired. An
// earlier Unlock returns at once, and the key is released after that time. This keeps a
// short job from running again on every host whose clock is a little late. If the Client
// is closed within this time, the key ends with its lease. With WithoutRenewal it is at
// most the TTL. For a scheduled job, package once also counts the time after its process has ended.
func WithMinHold(least time.Duration) LockOption {
	return func(s *lockSettings) { s.minHold = least }
}

// WithMaxHold ends the ownership after this time, as a loss. As after any loss, the holder has
// the margin as time to stop; the key is released after that, or at Unlock. This keeps a
// forgotten lock from being held forever.
func WithMaxHold(longest time.Duration) LockOption {
	return func(s *lockSettings) { s.maxHold = longest }
}

// WithMargin raises the margin: how long before the end of the lease the holder's
// ownership ends. The default is a twentieth of the lease and at least 2 ms; the maximum
// is half of the TTL. A waiter that is granted the lock has the rest of a heartbeat at first; if
// that leaves too little with the margin, its lease is renewed before the caller gets the lock.
func WithMargin(margin time.Duration) LockOption {
	return func(s *lockSettings) { s.margin = margin }
}

// WithAsyncUnlock makes Unlock return before the backend has answered. The Guard's context has ended by
// then, and nothing else can be done with the lock, but others may get it a little later. Unlock
// reports a loss that was known before. A loss that the answer shows is counted and logged, and a
// release that fails is logged and continues in the background, as without this option. A later
// TryLock of this Client for the same key waits for the answer, for up to 200 ms, so that it does not find
// the old lock. Close waits for all answers. Memory and files answer at once, so there the option gains
// nothing.
func WithAsyncUnlock() LockOption {
	return func(s *lockSettings) { s.asyncUnlock = true }
}

// WithShared acquires the key together with other callers of WithShared, as readers do. A
// caller without it waits until no shared holder is left. If the backend has no shared
// locks, the call returns ErrUnsupported.
func WithShared() LockOption {
	return func(s *lockSettings) { s.mode, s.shared = driver.Shared, true }
}

// WithPermits acquires one of limit permits of the key: at most that many callers hold it
// at a time. limit is between 1 and 1,048,576. All callers must use the same limit, or they wait
// for each other. If the backend has no permits, the call returns ErrUnsupported.
func WithPermits(limit int) LockOption {
	return func(s *lockSettings) { s.mode, s.limit, s.permits = driver.Permit, limit, true }
}

type lockSettings struct {
	ttl, wait, minHold, maxHold, margin time.Duration

	mode      driver.Mode
	limit     int    // of permits
	tokens    int    // tokens to reserve, for a handoff
	submitted string // the ID of the claim that was submitted last
	info      driver.Info
	hasWait   bool // WithWait
	noRenew   bool
	shared    bool // WithShared
	permits   bool // WithPermits
	hasTTL    bool // WithTTL

	asyncUnlock bool // WithAsyncUnlock
	ownLease    bool // WithOwnLease
}

// waits reports whether the claim may queue.
func (s *lockSettings) waits() bool { return !s.hasWait || s.wait > 0 }

// settings applies opts to the defaults and checks the result.
func (c *Client) settings(opts []LockOption) (lockSettings, error) {
	if len(opts) == 0 {
		return lockSettings{ttl: c.cfg.DefaultTTL, info: c.info}, nil
	}
	return c.applyOptions(opts)
}

// applyOptions is separate from settings, so that a call without options does not allocate.
//
//go:noinline
func (c *Client) applyOptions(opts []LockOption) (lockSettings, error) {
	s := lockSettings{ttl: c.cfg.DefaultTTL}
	for i, opt := range opts {
		if opt == nil {
			return s, fmt.Errorf("%w: lock option %d is nil", ErrInvalidConfig, i)
		}
		opt(&s)
	}
	if err := c.checkSettings(&s); err != nil {
		return s, err
	}
	s.info = c.describe(s.info)
	return s, nil
}

func (c *Client) checkSettings(s *lockSettings) error {
	if err := checkTTL(s.ttl, c.caps.MinTTL); err != nil {
		return err
	}
	for _, limit := range []struct {
		name    string
		d, most time.Duration
	}{
		{"WithWait", s.wait, maxDuration},
		{"WithMinHold", s.minHold, maxDuration},
		{"WithMaxHold", s.maxHold, maxDuration},
		{"WithMargin", s.margin, s.ttl / 2},
	} {
		if err := checkDuration(limit.name, limit.d, limit.most); err != nil {
			return err
		}
	}
	if s.maxHold > 0 && s.minHold > s.maxHold {
		return fmt.Errorf("%w: WithMinHold %v is above WithMaxHold %v", ErrInvalidConfig, s.minHold, s.maxHold)
	}
	if s.noRenew && s.minHold > s.ttl {
		return fmt.Errorf("%w: WithMinHold %v is above the TTL of %v, with WithoutRenewal", ErrInvalidConfig, s.minHold, s.ttl)
	}
	if s.shared && s.permits {
		return fmt.Errorf("%w: WithShared with WithPermits", ErrInvalidConfig)
	}
	if s.mode == driver.Permit && (s.limit < 1 || s.limit > maxPermits) {
		return fmt.Errorf("%w: WithPermits %d is not between 1 and %d", ErrInvalidConfig, s.limit, maxPermits)
	}
	if !c.caps.Supports(s.mode) {
		return fmt.Errorf("%w: %s locks on %s", ErrUnsupported, s.mode, c.caps.Name)
	}
	if s.ownLease && s.noRenew {
		return fmt.Errorf("%w: WithOwnLease with WithoutRenewal", ErrInvalidConfig)
	}
	if _, ok := c.store.(driver.Leaser); s.ownLease && !ok {
		return fmt.Errorf("%w: WithOwnLease on %s", ErrUnsupported, c.caps.Name)
	}
	return checkInfo(s.info)
}

// maxPermits limits WithPermits, because a backend may read every permit.
const maxPermits = 1 << 20

// maxInfo limits what one claim may store about its owner.
const maxInfo = 256

func checkInfo(i driver.Info) error {
	for _, f := range []struct{ name, value string }{{"Owner", i.Owner}, {"Host", i.Host}, {"Purpose", i.Purpose}} {
		if len(f.value) > maxInfo {
			return fmt.Errorf("%w: Info.%s has %d bytes, more than %d", ErrInvalidConfig, f.name, len(f.value), maxInfo)
		}
		if err := checkText(f.value); err != nil {
			return fmt.Errorf("%w: Info.%s: %w", ErrInvalidConfig, f.name, err)
		}
	}
	return nil
}

// describe replaces the empty fields of i with those of the Client.
func (c *Client) describe(i driver.Info) driver.Info {
	if i.Owner == "" {
		i.Owner = c.info.Owner
	}
	if i.Host == "" {
		i.Host = c.info.Host
	}
	if i.PID == 0 {
		i.PID = c.info.PID
	}
	return i
}
