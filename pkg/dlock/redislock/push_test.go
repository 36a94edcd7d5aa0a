package redislock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// eventsNow returns the events that a driver has sent.
func eventsNow(d *redisDriver) (all []driver.Event) {
	for {
		select {
		case ev := <-d.Events():
			all = append(all, ev)
		default:
			return all
		}
	}
}

// A push becomes an event. A foreign or damaged message does not.
func TestHeard(t *testing.T) {
	const sep = separator
	event := func(phase driver.Phase, token int64) []driver.Event {
		return []driver.Event{{Key: "k", ID: "id", State: driver.State{Phase: phase, Token: token}}}
	}
	for _, tc := range []struct {
		name, payload string
		replicas      int
		want, later   []driver.Event
		forgets       bool // the claim is not among those that wait any more
	}{
		{name: "held", payload: "held" + sep + "p:k" + sep + "id" + sep + "5", want: event(driver.Held, 5), forgets: true},
		{name: "held, not yet by replicas", payload: "held" + sep + "p:k" + sep + "id" + sep + "5", replicas: 1, want: event(driver.Unknown, 5)},
		{name: "gone", payload: "gone" + sep + "p:k" + sep + "id" + sep + "5", want: event(driver.Gone, 5)},
		{name: "free", payload: "free" + sep + "p:k" + sep + "id" + sep + "0", later: event(driver.Unknown, 0)},
		{name: "of a later version", payload: "new" + sep + "p:k" + sep + "id" + sep + "5", want: event(driver.Unknown, 5)},
		{name: "of another prefix", payload: "held" + sep + "q:k" + sep + "id" + sep + "5"},
		{name: "too short", payload: "held" + sep + "p:k" + sep + "id"},
		{name: "too long", payload: "held" + sep + "p:k" + sep + "id" + sep + "5" + sep + "6"},
		{name: "empty", payload: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &redisDriver{
					EventQueue: driver.NewEventQueue(4), prefix: "p:", waiting: map[string]waiter{"id": {key: "k"}},
					settings: settings{replicas: tc.replicas, gap: time.Second},
				}
				d.handlePush(tc.payload)
				if got := eventsNow(d); !slices.Equal(got, tc.want) {
					t.Errorf("sent %+v, want %+v", got, tc.want)
				}
				if _, waits := d.waiting["id"]; waits == tc.forgets {
					t.Errorf("the claim waits: %v", waits)
				}
				time.Sleep(time.Second - 1)
				if got := eventsNow(d); len(got) > 0 {
					t.Errorf("sent %+v while the key is left free", got)
				}
				time.Sleep(2 * time.Nanosecond)
				if got := eventsNow(d); !slices.Equal(got, tc.later) {
					t.Errorf("later sent %+v, want %+v", got, tc.later)
				}
			})
		})
	}
}

// Deadlines count from when the request was sent. A waiter asks again within a third of its
// heartbeat.
func TestAnswerDeadlines(t *testing.T) {
	sent := time.Unix(1_700_000_000, 0)
	heartbeat := driver.Heartbeat(time.Minute)
	for text, want := range map[string]driver.State{
		"held id 5":            {Phase: driver.Held, Token: 5, Until: sent.Add(time.Minute)},
		"gone id 0":            {Phase: driver.Gone},
		"queued id 0 2 7":      {Phase: driver.Queued, Ahead: 2, Recheck: 7 * time.Millisecond, Until: sent.Add(heartbeat)},
		"queued id 0 2 0":      {Phase: driver.Queued, Ahead: 2, Until: sent.Add(heartbeat)},
		"queued id 0 2 -5":     {Phase: driver.Queued, Ahead: 2, Until: sent.Add(heartbeat)},
		"queued id 0 2 100000": {Phase: driver.Queued, Ahead: 2, Recheck: heartbeat / 3, Until: sent.Add(heartbeat)},
	} {
		a, err := parseAnswer(text, driver.Ref{ID: "id", TTL: time.Minute}, sent)
		if err != nil || a.state != want {
			t.Errorf("%q became %+v, %v; want %+v", text, a.state, err, want)
		}
	}
}
