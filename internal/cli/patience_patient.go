//go:build patient

package cli

import (
	"os"
	"time"
)

// patient is the limit that a test of the command has set, so that a machine that stalls does not end what it does not
// test, or else the usual one.
func patient(usual time.Duration) time.Duration {
	d, err := time.ParseDuration(os.Getenv("DLOCK_TEST_PATIENCE"))
	if err != nil {
		return usual
	}
	return d
}
