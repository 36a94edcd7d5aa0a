package memlock_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(t *testing.T) *drivertest.Harness {
	store := memlock.New()
	open := func(t *testing.T, o driver.Options) driver.Driver {
		t.Helper()
		d, err := store.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open(t, driver.Options{})
	defer func() { _ = d.Close() }()
	return &drivertest.Harness{Caps: d.Caps(), Open: open, TTL: 3 * time.Second, WaiterTTL: time.Minute, Slack: 3 * time.Second}
}

func TestConformance(t *testing.T) { drivertest.Run(t, harness, drivertest.AtOnce()) }

func TestConformanceInVirtualTime(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		h := harness(t)
		h.Slack = 10 * time.Millisecond
		return h
	}, drivertest.InVirtualTime())
}

func FuzzKeys(f *testing.F) { drivertest.FuzzKeys(f, harness) }
