package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// spared reports, when it is certain, whether a trip spares a node.
func spared(t *trip) <-chan bool {
	done := make(chan bool, 1)
	go func() { done <- t.spares() }()
	return done
}

func TestTripSparesWhatItDoesNotNeed(t *testing.T) {
	trip := newTrip(3, 2, time.Hour)
	defer trip.end()
	silent := spared(trip)
	trip.record(nil)
	select {
	case <-silent:
		t.Fatal("it was decided too early")
	case <-time.After(10 * time.Millisecond):
	}
	trip.record(nil)
	if !<-silent {
		t.Error("a silent node was asked, though a majority had answered")
	}
	trip.record(errSilent)
	if trip.ctx.Err() == nil {
		t.Error("the trip goes on after the last answer")
	}
}

func TestTripNeedsSilentNodes(t *testing.T) {
	lost := errors.New("EOF")
	for name, make := range map[string]func() *trip{
		"another fails": func() *trip {
			trip := newTrip(3, 2, time.Hour)
			trip.record(lost)
			return trip
		},
		"the others are too few":  func() *trip { return newTrip(2, 2, time.Hour) },
		"the others take so long": func() *trip { return newTrip(3, 2, 40*time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			trip := make()
			defer trip.end()
			select {
			case is := <-spared(trip):
				if is {
					t.Error("a node was spared that is needed")
				}
			case <-time.After(time.Minute):
				t.Fatal("it is not decided")
			}
		})
	}
	optional := newTrip(1, 0, time.Hour)
	defer optional.end()
	if !optional.spares() {
		t.Error("a silent node was asked that is not needed")
	}
}

// The longer a node is silent, the less often it is tried, and one answer ends that.
func TestSilentNodesAreLeftAlone(t *testing.T) {
	var h health
	for missed := range 23 {
		if h.isSilent() != (missed >= 3) {
			t.Errorf("silent after %d calls without an answer: %v", missed, h.isSilent())
		}
		h.press()
		h.record(false)
	}
	if !h.isSilent() || h.pause() != probeLatest {
		t.Errorf("silent: %v, tried every %v", h.isSilent(), h.pause())
	}
	if !h.admits() || h.admits() {
		t.Error("not one call at a time is admitted")
	}
	h.record(true)
	if h.isSilent() || !h.admits() {
		t.Error("an answer did not end it")
	}
}

// Nodes that only seem dead, as all may on a busy machine, are called when another one really is:
// they are never missing from a majority.
func TestSeeminglyDeadNodesAreAsked(t *testing.T) {
	t.Parallel()
	var clients []redis.UniversalClient
	var proxies []*faultproxy.Proxy
	for range 3 {
		server := testenv.Redis(t)
		p := testenv.Proxy(t, server.Addr())
		c := server.ClientAt(p.Addr())
		defer c.Close()
		clients, proxies = append(clients, c), append(proxies, p)
	}
	opened, err := New(clients, WithNodeTimeout(maxNodeTimeout)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*redDriver)
	defer func() { _ = d.Close() }()
	proxies[0].BlackHole(true)
	for i := range testenv.UnderStress(2, 5) { // a call may take a quarter of the timeout
		for _, n := range d.nodes {
			n.health.mu.Lock()
			n.health.missed, n.health.probed = 0, time.Now()
			if n.at > 0 {
				n.health.missed = silentAfter + 10
			}
			n.health.mu.Unlock()
		}
		r := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", i), TTL: time.Minute}
		if st, err := d.Acquire(context.Background(), driver.Request{Ref: r}); err != nil || st.Phase != driver.Held {
			t.Fatalf("acquired: %v, %v", st.Phase, err)
		}
		if st, err := d.Release(context.Background(), r); err != nil || st.Phase != driver.Held {
			t.Fatalf("released: %v, %v", st.Phase, err)
		}
	}
	proxies[0].Cut() // so that Close need not wait for it
}
