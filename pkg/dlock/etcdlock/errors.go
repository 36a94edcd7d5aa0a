package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ErrNoSpace: the server has reached its quota. Releases and renewals still work; new claims are
// not stored. It is a dlock.ErrNotReady. Other server errors are also a dlock.ErrUnavailable, a
// dlock.ErrDenied or a dlock.ErrNotReady.
var ErrNoSpace = fmt.Errorf("%w: etcd is out of space", driver.ErrNotReady)

// errLeaseGone: the lease of a claim has ended, so nothing was stored.
var errLeaseGone = errors.New("the lease is gone")

// kinds is the table of docs/backends/etcd.md: errors that refuse a call before anything was done.
// An error that is not listed, such as a timeout inside the cluster, leaves the outcome unknown.
var kinds = []struct {
	reply error
	err   error
	class driver.Class
}{
	{rpctypes.ErrLeaseNotFound, errLeaseGone, driver.Transient},
	{rpctypes.ErrNoSpace, ErrNoSpace, driver.Transient},
	{rpctypes.ErrNoLeader, driver.ErrNotReady, driver.Transient},
	{rpctypes.ErrTooManyRequests, driver.ErrNotReady, driver.Transient},
	{rpctypes.ErrNotCapable, driver.ErrNotReady, driver.Transient},
	{rpctypes.ErrAuthOldRevision, driver.ErrNotReady, driver.Transient},
	{rpctypes.ErrCorrupt, driver.ErrNotReady, driver.Transient},
	{rpctypes.ErrPermissionDenied, driver.ErrDenied, driver.Fatal},
	{rpctypes.ErrAuthFailed, driver.ErrDenied, driver.Fatal},
	{rpctypes.ErrInvalidAuthToken, driver.ErrNotReady, driver.Transient}, // of before a restart: the client gets another
	{rpctypes.ErrUserEmpty, driver.ErrDenied, driver.Fatal},
	{rpctypes.ErrRoleNotFound, driver.ErrDenied, driver.Fatal},
}

// fatal lists the codes of invalid calls.
var fatal = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.PermissionDenied: true, codes.Unauthenticated: true, codes.Unimplemented: true,
}

// classify says what an error means for the claim.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var open *unsentError
	if errors.As(err, &open) {
		return unreached(open.cause)
	}
	err = rpctypes.Error(err)
	for _, k := range kinds {
		if errors.Is(err, k.reply) {
			return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
		}
	}
	if isUnsent(err) {
		return unreached(err)
	}
	code := status.Code(err)
	var reply rpctypes.EtcdError
	if errors.As(err, &reply) {
		code = reply.Code()
	}
	if code == codes.Unauthenticated || code == codes.PermissionDenied {
		err = fmt.Errorf("%w: %w", driver.ErrDenied, err)
	}
	if fatal[code] {
		return driver.Classify(err, driver.Fatal)
	}
	return err
}

// isDenied reports whether the server refused a call because the user may not use one of its keys. Another key may be permitted.
func isDenied(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) }

// unreached classifies the error of a call that was not sent.
func unreached(err error) error {
	return driver.Classify(fmt.Errorf("%w: %w", driver.ErrUnavailable, timeUp(err)), driver.Transient)
}

// A timeUpError is a context error in gRPC's form.
type timeUpError struct {
	error
	of error
}

func (t timeUpError) Unwrap() []error { return []error{t.error, t.of} }

// timeUp marks an error that says only that the time has run out: an earlier error may say more.
func timeUp(err error) error {
	switch {
	case !saysTimeUp(err):
		return err
	case status.Code(err) == codes.Canceled:
		return timeUpError{err, context.Canceled}
	}
	return timeUpError{err, context.DeadlineExceeded}
}

// saysTimeUp reports whether gRPC says only that a context has ended, and nothing about a
// connection.
func saysTimeUp(err error) bool {
	s, ok := status.FromError(err)
	return ok && (s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled) && !strings.Contains(s.Message(), balancerError)
}

const balancerError = "latest balancer error: "

// unconnected lists gRPC's errors for a call that had no connection. The client repeats a write
// only if it was not sent, or if it was cancelled and the caller's context has not ended: see
// txnCall.
var unconnected = []string{
	"last connection error: ", "transport: Error while dialing: ", "transport: authentication handshake failed: ",
	"while waiting for connections to become ready", balancerError, "error reading server preface: ",
}

// errClosed: the client was closed. The client does not report this, but repeats calls until their
// context ends.
var errClosed = driver.Classify(fmt.Errorf("%w: the etcd client was closed", driver.ErrUnavailable), driver.Fatal)

// isUnsent reports whether an error can only occur before anything is sent.
func isUnsent(err error) bool {
	s, ok := status.FromError(err)
	if !ok || (s.Code() != codes.Unavailable && s.Code() != codes.DeadlineExceeded && s.Code() != codes.Canceled) {
		return false
	}
	return slices.ContainsFunc(unconnected, func(text string) bool { return strings.Contains(s.Message(), text) })
}

// unsent marks the error of a call that precedes the claim's own call: whatever the error is,
// nothing of the claim is stored.
func unsent(err error) error {
	err = classify(err)
	if err == nil || driver.ClassOf(err) != driver.Ambiguous {
		return err
	}
	return driver.Classify(fmt.Errorf("%w: no lease for the claim: %w", driver.ErrUnavailable, timeUp(err)), driver.Transient)
}

// recoverPanic turns a panic in a goroutine of the driver, which no caller could recover, into an error: a client whose parts
// were replaced may panic.
func recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the etcd client panicked: %v", p)
	}
}
