package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

var errRefused = errors.New("connection refused")

// unreached is the error of a call that was not sent.
func unreached(cause error) error {
	return driver.Classify(fmt.Errorf("%w: %w", driver.ErrUnavailable, cause), driver.Transient)
}

// hangs answers an attempt only when its timeout has passed.
func hangs(ctx context.Context, end func(error) error) (driver.State, error) {
	<-ctx.Done()
	return driver.State{}, end(ctx.Err())
}

// The end of the wait ends the last attempt, which has no cause of its own: the error has the cause
// of the attempts before. All attempts decide whether anything may be stored.
func TestLastCauseIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		last func(error) error // the error of the last attempt, from that of its context
		want error
	}{
		"the last was not sent":             {unreached, dlock.ErrUnavailable},
		"the deadline of a connection came": {func(error) error { return unreached(os.ErrDeadlineExceeded) }, dlock.ErrUnavailable},
		"the last may be":                   {func(err error) error { return err }, dlock.ErrUnknownOutcome},
	} {
		virtual(t, func(t *testing.T) {
			attempts := 0
			s := &scripted{Opener: memlock.New(), remote: true}
			s.acquire = func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
				attempts++
				if attempts < 3 {
					return driver.State{}, unreached(errRefused)
				}
				return hangs(ctx, tc.last)
			}
			_, err := client(t, s, dlock.Config{}).Acquire(ctx, "k", dlock.WithWait(second))
			wantErr(t, err, tc.want, errRefused)
			if xerrors.CodeOf(err) != xerrors.CodeOf(tc.want) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			if errors.Is(err, dlock.ErrUnavailable) && errors.Is(err, dlock.ErrUnknownOutcome) {
				t.Errorf("%s: %v, though something may be stored", name, err)
			}
		})
	}
}

// A timeout in the backend's client is not the end of the caller's context. If that has ended too,
// the error has both.
func TestTimeoutsOfOthersAreHidden(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			return driver.State{}, unreached(fmt.Errorf("dial: %w", context.DeadlineExceeded))
		}
		c := client(t, s, dlock.Config{})
		_, err := c.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "dial") {
			t.Errorf("%v", err)
		}
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		_, err = c.Acquire(short, "k")
		wantErr(t, err, dlock.ErrUnavailable, context.DeadlineExceeded)
	})
}

// A claim that cannot be stored is not cleaned up.
func TestUnavailableLeavesNothingToCleanUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			return driver.State{}, unreached(errRefused)
		}
		s.release = func(context.Context, driver.Driver, driver.Ref) (driver.State, error) {
			t.Error("something is released")
			return driver.State{}, unreached(errRefused)
		}
		c := client(t, s, dlock.Config{})
		_, err := c.TryLock(ctx, "k")
		wantErr(t, err, dlock.ErrUnavailable)
		_, err = c.Acquire(ctx, "k", dlock.WithWait(second))
		wantErr(t, err, dlock.ErrUnavailable)
		wantErr(t, c.Close(), nil)
	})
}

// Only the end of the first attempt is known: no attempt before it had a cause.
func TestFirstAttemptHasNoCause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		end := func(err error) error { return err }
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			return hangs(ctx, end)
		}
		c := client(t, s, dlock.Config{})
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		_, err := c.Acquire(short, "k")
		wantErr(t, err, context.DeadlineExceeded, dlock.ErrUnknownOutcome)
		if strings.Contains(err.Error(), "%!") {
			t.Error(err)
		}
		end = unreached
		_, err = c.Acquire(ctx, "k", dlock.WithWait(second))
		wantErr(t, err, dlock.ErrUnavailable)
		if errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// An attempt that was given up early and is repeated at once is not a cause.
func TestAttemptTimeoutIsNoCause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		attempts := 0
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			attempts++
			if attempts == 1 {
				return driver.State{}, sharedtimeout.ErrAttemptTimeout
			}
			return hangs(ctx, func(err error) error { return err })
		}
		_, err := client(t, s, dlock.Config{}).TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if errors.Is(err, sharedtimeout.ErrAttemptTimeout) || attempts != 2 {
			t.Errorf("%v, after %d attempts", err, attempts)
		}
	})
}

// An error of the backend while the Client closes is returned: only calls that closing has ended
// return ErrClosed.
func TestErrorWhileClosing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		check := func(ctx context.Context) ([]driver.Finding, error) {
			<-ctx.Done()
			return nil, unreached(errRefused)
		}
		c := client(t, &scripted{Opener: memlock.New(), remote: true, check: check}, dlock.Config{})
		got := async(func() error { _, err := c.Check(ctx); return err })
		synctest.Wait()
		wantErr(t, c.Close(), nil)
		err := <-got
		wantErr(t, err, dlock.ErrUnavailable, errRefused)
		if errors.Is(err, dlock.ErrClosed) {
			t.Error(err)
		}
	})
}
