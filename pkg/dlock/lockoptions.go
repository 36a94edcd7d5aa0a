package dlock

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A LockOption shapes one acquisition.
type LockOption func(*lockSettings)

// WithTTL sets the lease: how long the lock outlives its process. While the
// process lives, the lock is renewed every third of it.
func WithTTL(ttl time.Duration) LockOption {
	return func(s *lockSettings) { s.ttl, s.ttlAsked = ttl, true }
}

// WithWait bounds the wait for the key, whatever the context allows. When it is
// over the error is ErrLockHeldByOther. 0 means to try once.
func WithWait(longest time.Duration) LockOption {
	return func(s *lockSettings) { s.wait, s.bounded = longest, true }
}

// WithInfo tells people who inspect the key who holds it and what for. Empty
// fields keep the defaults: the program's name, the host's name, the process ID.
func WithInfo(info Info) LockOption {
	return func(s *lockSettings) { s.info = info }
}

// WithoutRenewal lets the lock end with its TTL unless Extend is called.
func WithoutRenewal() LockOption {
	return func(s *lockSettings) { s.noRenew = true }
}

// WithMinHold keeps the key taken for at least this long after it was
// acquired, even if it is unlocked sooner: Unlock returns at once and the key
// is released when the time has come. It keeps a short job from running once on
// every host whose clock is a little late. Closing the Client inside this time
// leaves the key to its lease. With WithoutRenewal it is at most the TTL.
func WithMinHold(least time.Duration) LockOption {
	return func(s *lockSettings) { s.minHold = least }
}

// WithMaxHold ends the ownership after this long, as a loss. Its holder has the margin
// to stop, as after any loss; then, or when it unlocks, the key is released. It keeps a
// forgotten lock from living for ever.
func WithMaxHold(longest time.Duration) LockOption {
	return func(s *lockSettings) { s.maxHold = longest }
}

// WithMargin raises how long before the end of the lease the holder's
// ownership ends. The default is a twentieth of the lease and at least 2 ms;
// the most is half of the TTL.
func WithMargin(margin time.Duration) LockOption {
	return func(s *lockSettings) { s.margin = margin }
}

// WithShared takes the key together with others who do the same, as readers do;
// whoever takes it without waits until none is left. A backend that cannot is
// ErrUnsupported.
func WithShared() LockOption {
	return func(s *lockSettings) { s.mode, s.shared = driver.Shared, true }
}

// WithPermits takes one of limit permits of the key: at most that many hold it at
// a time. All must name the same limit, or they wait for each other. A backend
// that cannot is ErrUnsupported.
func WithPermits(limit int) LockOption {
	return func(s *lockSettings) { s.mode, s.limit, s.permits = driver.Permit, limit, true }
}

type lockSettings struct {
	ttl, wait, minHold, maxHold, margin time.Duration

	mode     driver.Mode
	limit    int    // of permits
	fences   int    // of a handoff: tokens to reserve
	filed    string // the ID of the claim that was filed last
	info     driver.Info
	bounded  bool // by WithWait
	noRenew  bool
	shared   bool // WithShared
	permits  bool // WithPermits
	ttlAsked bool // WithTTL
}

// waits reports whether the claim may queue.
func (s *lockSettings) waits() bool { return !s.bounded || s.wait > 0 }

// settings applies opts to the defaults and checks the result.
func (c *Client) settings(opts []LockOption) (lockSettings, error) {
	if len(opts) == 0 {
		return lockSettings{ttl: c.cfg.DefaultTTL, info: c.info}, nil
	}
	return c.applied(opts)
}

// applied stays out of settings, so that a call without options allocates none.
//
//go:noinline
func (c *Client) applied(opts []LockOption) (lockSettings, error) {
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
	for _, span := range []struct {
		name    string
		d, most time.Duration
	}{
		{"WithWait", s.wait, maxDuration},
		{"WithMinHold", s.minHold, maxDuration},
		{"WithMaxHold", s.maxHold, maxDuration},
		{"WithMargin", s.margin, s.ttl / 2},
	} {
		if err := checkSpan(span.name, span.d, span.most); err != nil {
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
	return checkInfo(s.info)
}

// maxPermits bounds WithPermits: a backend may look at each of them.
const maxPermits = 1 << 20

// maxInfo bounds what one claim may store about its owner.
const maxInfo = 256

func checkInfo(i driver.Info) error {
	for _, f := range []struct{ name, value string }{{"Owner", i.Owner}, {"Host", i.Host}, {"Purpose", i.Purpose}, {"Trace", i.Trace}} {
		if len(f.value) > maxInfo {
			return fmt.Errorf("%w: Info.%s has %d bytes, more than %d", ErrInvalidConfig, f.name, len(f.value), maxInfo)
		}
		if err := checkName(f.value); err != nil {
			return fmt.Errorf("%w: Info.%s: %w", ErrInvalidConfig, f.name, err)
		}
	}
	return nil
}

// describe fills the empty fields of i with what the Client knows of itself.
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
