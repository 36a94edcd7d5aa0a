package etcdlock

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What a server can answer to a lock call. Test with errors.Is.
var (
	// ErrNoSpace: the server is at its quota. Releases and renewals still work;
	// nothing new is stored.
	ErrNoSpace = errors.New("etcd is out of space")
	// ErrNotReady: the cluster cannot serve now: it has no leader, or too much to
	// do.
	ErrNotReady = errors.New("etcd is not ready")
	// ErrDenied: the server does not let us in.
	ErrDenied = errors.New("etcd denies access")
)

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
	{rpctypes.ErrNoLeader, ErrNotReady, driver.Transient},
	{rpctypes.ErrTooManyRequests, ErrNotReady, driver.Transient},
	{rpctypes.ErrNotCapable, ErrNotReady, driver.Transient},
	{rpctypes.ErrAuthOldRevision, ErrNotReady, driver.Transient},
	{rpctypes.ErrCorrupt, ErrNotReady, driver.Transient},
	{rpctypes.ErrPermissionDenied, ErrDenied, driver.Fatal},
	{rpctypes.ErrAuthFailed, ErrDenied, driver.Fatal},
	{rpctypes.ErrInvalidAuthToken, ErrDenied, driver.Fatal},
	{rpctypes.ErrUserEmpty, ErrDenied, driver.Fatal},
	{rpctypes.ErrRoleNotFound, ErrDenied, driver.Fatal},
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
	err = rpctypes.Error(err)
	for _, k := range kinds {
		if errors.Is(err, k.reply) {
			return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
		}
	}
	code := status.Code(err)
	var reply rpctypes.EtcdError
	if errors.As(err, &reply) {
		code = reply.Code()
	}
	if code == codes.Unauthenticated || code == codes.PermissionDenied {
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if fatal[code] {
		return driver.Classify(err, driver.Fatal)
	}
	return err
}

// unsent marks an error of a call that came before the claim's own: whatever it
// was, nothing of the claim is stored.
func unsent(err error) error {
	if err = classify(err); err != nil && driver.ClassOf(err) == driver.Ambiguous {
		return driver.Classify(err, driver.Transient)
	}
	return err
}
