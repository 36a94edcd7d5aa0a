package etcdlock

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

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
