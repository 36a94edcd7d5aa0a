package etcdlock

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A restarted server does not know the tokens from before. Cleanup that treated this as a refusal
// would leave a claim for as long as its process lives.
func TestUnknownTokenIsTriedAgain(t *testing.T) {
	for _, reply := range []error{rpctypes.ErrInvalidAuthToken, rpctypes.ErrGRPCInvalidAuthToken} {
		err := classify(reply)
		if driver.ClassOf(err) != driver.Transient || !errors.Is(err, driver.ErrNotReady) {
			t.Errorf("%v: class %v", err, driver.ClassOf(err))
		}
	}
	if err := classify(rpctypes.ErrGRPCAuthFailed); driver.ClassOf(err) != driver.Fatal || !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a wrong password: %v", err)
	}
}

// A value that is not a record of this library yields an empty record, even if parts of it can be
// read.
func TestForeignValuesAreNoRecords(t *testing.T) {
	for _, value := range []string{"", "x", `{"id":"a"`, `{"id":"a","created":5}`} {
		if r := recordOf(&mvccpb.KeyValue{Value: []byte(value)}); r.ID != "" {
			t.Errorf("%q has the ID %q", value, r.ID)
		}
	}
	if r := recordOf(&mvccpb.KeyValue{Value: []byte(`{"id":"a"}`)}); r.ID != "a" {
		t.Errorf("the ID is %q", r.ID)
	}
}

// A claim has its place by its key and its revision.
func TestPlaceIsByKeyAndRevision(t *testing.T) {
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev}
	}
	for _, tt := range []struct {
		kvs   []*mvccpb.KeyValue
		phase driver.Phase
		ahead int
	}{
		{nil, driver.Gone, 0},
		{[]*mvccpb.KeyValue{kv("k/1-dlock0", 5)}, driver.Held, 0},
		{[]*mvccpb.KeyValue{kv("k/1-dlock0", 6)}, driver.Gone, 0},
		{[]*mvccpb.KeyValue{kv("k/1-dlock1", 5)}, driver.Gone, 0}, // stored by one transaction with this claim
		{[]*mvccpb.KeyValue{kv("k/1-dlock0", 5), kv("k/2-dlock0", 3)}, driver.Queued, 1},
	} {
		p, sure := place("k/1-dlock0", "k/", 5, tt.kvs, true)
		if p.phase != tt.phase || p.ahead != tt.ahead || !sure {
			t.Errorf("%v: %v behind %d, sure %v", tt.kvs, p.phase, p.ahead, sure)
		}
	}
}

// The class of an error decides whether a call is repeated and whether something is cleaned up after it.
func TestClassesOfErrors(t *testing.T) {
	const noConnection = "last connection error: refused"
	for _, c := range []struct {
		err   error
		class driver.Class
		is    error // nil: none of the kinds below
	}{
		{rpctypes.ErrGRPCLeaseNotFound, driver.Transient, errLeaseGone},
		{rpctypes.ErrGRPCNoSpace, driver.Transient, ErrNoSpace},
		{rpctypes.ErrGRPCNoLeader, driver.Transient, driver.ErrNotReady},
		{rpctypes.ErrGRPCRequestTooManyRequests, driver.Transient, driver.ErrNotReady},
		{rpctypes.ErrGRPCNotCapable, driver.Transient, driver.ErrNotReady},
		{rpctypes.ErrGRPCAuthOldRevision, driver.Transient, driver.ErrNotReady},
		{rpctypes.ErrGRPCCorrupt, driver.Transient, driver.ErrNotReady},
		{rpctypes.ErrGRPCPermissionDenied, driver.Fatal, driver.ErrDenied},
		{rpctypes.ErrGRPCUserEmpty, driver.Fatal, driver.ErrDenied},
		{rpctypes.ErrGRPCRoleNotFound, driver.Fatal, driver.ErrDenied},
		{rpctypes.ErrGRPCEmptyKey, driver.Fatal, nil}, // its code says so
		{rpctypes.ErrGRPCTimeout, driver.Ambiguous, nil},
		{status.Error(codes.InvalidArgument, "x"), driver.Fatal, nil},
		{status.Error(codes.Unimplemented, "x"), driver.Fatal, nil},
		{status.Error(codes.PermissionDenied, "x"), driver.Fatal, driver.ErrDenied},
		{status.Error(codes.Unauthenticated, "x"), driver.Fatal, driver.ErrDenied},
		{status.Error(codes.Internal, "x"), driver.Ambiguous, nil},
		{status.Error(codes.Unavailable, "transport is closing"), driver.Ambiguous, nil},
		{status.Error(codes.DeadlineExceeded, "x"), driver.Ambiguous, nil},
		{errors.New("x"), driver.Ambiguous, nil},
		{status.Error(codes.Unavailable, noConnection), driver.Transient, driver.ErrUnavailable},
		{status.Error(codes.DeadlineExceeded, noConnection), driver.Transient, driver.ErrUnavailable},
		{status.Error(codes.Canceled, noConnection), driver.Transient, driver.ErrUnavailable},
		{status.Error(codes.Internal, noConnection), driver.Ambiguous, nil},
		{errors.New(noConnection), driver.Ambiguous, nil},
		{&unsentError{errors.New("x")}, driver.Transient, driver.ErrUnavailable},
	} {
		err := classify(c.err)
		if driver.ClassOf(err) != c.class || !errors.Is(err, c.err) && !errors.Is(c.is, driver.ErrUnavailable) && !errors.Is(err, rpctypes.Error(c.err)) {
			t.Errorf("%v: %v of class %v, want %v", c.err, err, driver.ClassOf(err), c.class)
		}
		for _, kind := range []error{errLeaseGone, ErrNoSpace, driver.ErrNotReady, driver.ErrDenied, driver.ErrUnavailable} {
			if errors.Is(err, kind) != (kind == c.is || c.is == ErrNoSpace && kind == driver.ErrNotReady) { //nolint:errorlint // the kinds themselves
				t.Errorf("%v: %v is %v: %v", c.err, err, kind, errors.Is(err, kind))
			}
		}
	}
	if classify(nil) != nil || unsent(nil) != nil {
		t.Error("no error is one")
	}
}

// An error of a call that precedes the claim's own call leaves nothing of the claim. One that says only that the time has
// run out is found as an error of a context.
func TestErrorsBeforeTheClaim(t *testing.T) {
	for _, c := range []struct {
		err   error
		class driver.Class
		is    []error
		not   []error
	}{
		{rpctypes.ErrGRPCPermissionDenied, driver.Fatal, []error{driver.ErrDenied}, []error{driver.ErrUnavailable}},
		{errors.New("x"), driver.Transient, []error{driver.ErrUnavailable}, []error{context.Canceled, context.DeadlineExceeded}},
		{status.Error(codes.Internal, "x"), driver.Transient, []error{driver.ErrUnavailable}, []error{context.Canceled, context.DeadlineExceeded}},
		{status.Error(codes.DeadlineExceeded, "x"), driver.Transient, []error{driver.ErrUnavailable, context.DeadlineExceeded}, []error{context.Canceled}},
		{status.Error(codes.Canceled, "x"), driver.Transient, []error{driver.ErrUnavailable, context.Canceled}, []error{context.DeadlineExceeded}},
		{status.Error(codes.DeadlineExceeded, balancerError+"x"), driver.Transient, []error{driver.ErrUnavailable}, []error{context.Canceled, context.DeadlineExceeded}},
	} {
		err := unsent(c.err)
		if driver.ClassOf(err) != c.class {
			t.Errorf("%v: class %v, want %v", c.err, driver.ClassOf(err), c.class)
		}
		for _, is := range c.is {
			if !errors.Is(err, is) {
				t.Errorf("%v: %v is not %v", c.err, err, is)
			}
		}
		for _, not := range c.not {
			if errors.Is(err, not) {
				t.Errorf("%v: %v is %v", c.err, err, not)
			}
		}
	}
}
