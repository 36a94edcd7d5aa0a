package etcdlock

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A server that was restarted does not know the tokens of before. Clean-up that took this for
// a refusal would leave a claim for as long as its process lives.
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
