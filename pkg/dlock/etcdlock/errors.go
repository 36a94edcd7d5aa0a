package etcdlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ErrNoSpace: the server is at its quota. Releases and renewals still work; nothing new
// is stored. It is a dlock.ErrNotReady; other errors of a server are a
// dlock.ErrUnavailable, a dlock.ErrDenied or a dlock.ErrNotReady as well.
var ErrNoSpace = fmt.Errorf("%w: etcd is out of space", driver.ErrNotReady)

// errLeaseGone: the lease of a claim has ended, so nothing was stored.
var errLeaseGone = errors.New("the lease is gone")

// kinds is the table of docs/backends/etcd.md: what was refused before anything
// was done. An error that is not here, such as a time-out inside the cluster,
// leaves the outcome open.
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

// fatal are the codes of calls that are wrong in themselves.
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
		err = open.cause
	}
	err = rpctypes.Error(err)
	for _, k := range kinds {
		if errors.Is(err, k.reply) {
			return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
		}
	}
	if isUnsent(err) {
		return driver.Classify(fmt.Errorf("%w: %w", driver.ErrUnavailable, err), driver.Transient)
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

// unconnected are what gRPC says of a call that had no connection to be sent on. A call
// that was sent is never made again by the client unless it only reads, so that the
// error of such a call does not hide an earlier attempt.
var unconnected = []string{
	"last connection error: ", "transport: Error while dialing: ", "transport: authentication handshake failed: ",
	"while waiting for connections to become ready", "latest balancer error: ", "error reading server preface: ",
}

// errClosed: the client was closed. It does not say so itself, but repeats calls until their
// context ends.
var errClosed = driver.Classify(fmt.Errorf("%w: the etcd client was closed", driver.ErrUnavailable), driver.Fatal)

// isUnsent reports whether an error can only be met before anything is sent.
func isUnsent(err error) bool {
	s, ok := status.FromError(err)
	if !ok || (s.Code() != codes.Unavailable && s.Code() != codes.DeadlineExceeded && s.Code() != codes.Canceled) {
		return false
	}
	return slices.ContainsFunc(unconnected, func(text string) bool { return strings.Contains(s.Message(), text) })
}

// unsent marks an error of a call that came before the claim's own: whatever it
// was, nothing of the claim is stored.
func unsent(err error) error {
	err = classify(err)
	if err == nil || driver.ClassOf(err) != driver.Ambiguous {
		return err
	}
	return driver.Classify(fmt.Errorf("%w: no lease for the claim: %w", driver.ErrUnavailable, err), driver.Transient)
}
