package drivertest_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The conformance test of a backend. Each case gets a store of its own.
func Example() {
	_ = func(t *testing.T) { // func TestConformance(t *testing.T)
		drivertest.Run(t, func(*testing.T) *drivertest.Harness {
			store := memlock.New()
			return &drivertest.Harness{
				Caps: driver.Caps{
					Name: "memory", Lease: true, Fencing: true, TokenRange: true, FIFO: true, Push: true,
					Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: time.Millisecond,
				},
				Open: func(t *testing.T, o driver.Options) driver.Driver {
					d, err := store.Open(o)
					if err != nil {
						t.Fatal(err)
					}
					return d
				},
			}
		})
	}
}
