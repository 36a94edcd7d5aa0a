package trial

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Client that could not release all when it was closed excuses the claims of its process for as long as a lease may last. The
// longest one is five times the TTL.
func TestWhoseClaimsAreGhosts(t *testing.T) {
	const now = int64(time.Minute)
	unknown := dlock.ErrUnknownOutcome.Error()
	stop := event.Event{At: now - int64(time.Second), Kind: event.Stop, PID: 7}
	closed := func(ago time.Duration, note string) event.Event {
		return event.Event{At: now - int64(ago), Kind: event.Closed, PID: 7, Note: note}
	}
	restart := oracle.Struck{Fault: schedule.Fault{Kind: schedule.LeaderPause}, From: now - int64(25*time.Second), To: now - int64(20*time.Second)}
	for name, tt := range map[string]struct {
		events   []event.Event
		topology string
		faults   []oracle.Struck
		want     bool
	}{
		"all is closed":                 {[]event.Event{closed(5*time.Second, ""), stop}, schedule.Single, nil, true},
		"it was killed":                 {[]event.Event{closed(5*time.Second, "")}, schedule.Single, nil, false},
		"the last Close left something": {[]event.Event{{At: stop.At, Kind: event.Stop, PID: 7, Note: unknown}}, schedule.Single, nil, false},
		"an earlier one did":            {[]event.Event{closed(9*time.Second, unknown), stop}, schedule.Single, nil, false},
		"long before":                   {[]event.Event{closed(12*time.Second, unknown), stop}, schedule.Single, nil, true},
		"long before, on etcd":          {[]event.Event{closed(30*time.Second, unknown), stop}, schedule.Etcd3, nil, true},
		"before leases began anew":      {[]event.Event{closed(30*time.Second, unknown), stop}, schedule.Etcd3, []oracle.Struck{restart}, false},
	} {
		t.Run(name, func(t *testing.T) {
			one := &trial{evidence: &oracle.Evidence{Topology: tt.topology, TTL: 2 * time.Second, Faults: tt.faults}}
			if tt.topology == schedule.Etcd3 {
				one.evidence.TTL = 5 * time.Second
			}
			if got := one.orderly(tt.events, now)[7]; got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
