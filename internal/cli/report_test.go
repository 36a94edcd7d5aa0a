package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A narrow line keeps the times and the queue, and something of the key and the holder.
func TestWaitLine(t *testing.T) {
	who := &dlock.Claim{Age: 75 * time.Second, Info: dlock.Info{Owner: "billing", Host: "worker-17.eu-west.example.com", PID: 20117, Purpose: "close-month"}}
	for _, c := range []struct {
		key     string
		who     *dlock.Claim
		columns int
		want    string
	}{
		{"k", who, 200, `dlock: waiting for "k", held by billing@worker-17.eu-west.example.com pid 20117 (close-month) for 1m15s, 3 ahead [2s]`},
		{"k", nil, 60, `dlock: waiting for "k", 3 ahead [2s]`},
		{"deploy:web-frontend-production", who, 80, "dlock: deploy…uction, held by billing@work…com pid 20117 for 1m15s, 3 ahead [2s]"},
		{"deploy:web-frontend-production", who, 60, "dlock: de…ion, held by billin… 20117 for 1m15s, 3 ahead [2s]"},
	} {
		got := waitLine(c.key, c.who, ", 3 ahead [2s]", c.columns)
		if got != c.want || columnsOf(got) > c.columns {
			t.Errorf("%d columns, want at most %d:\n%s\nwant\n%s", columnsOf(got), c.columns, got, c.want)
		}
	}
	for columns := 2; columns < 200; columns++ {
		got := waitLine("deploy:web-frontend-production", who, ", 3 ahead [2s]", columns)
		if columnsOf(got) > columns || (columns >= 50 && !strings.HasSuffix(got, "for 1m15s, 3 ahead [2s]")) {
			t.Errorf("%d columns: %s", columns, got)
		}
	}
}

// The claim of this process may not be withdrawn yet when it has given up: it is neither a holder nor a waiter.
func TestOthersAreNotThisProcess(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	own := dlock.Info{Host: host, PID: os.Getpid()}
	other := dlock.Info{Host: host, PID: os.Getpid() + 1}
	who, waiters := others([]dlock.Claim{
		{Phase: dlock.PhaseHeld, Info: own},
		{Phase: dlock.PhaseHeld, Info: other},
		{Phase: dlock.PhaseQueued, Info: other},
		{Phase: dlock.PhaseQueued, Info: own},
	})
	if who == nil || who.Info != other || waiters != 1 {
		t.Errorf("%+v, and %d wait", who, waiters)
	}
}
