package dlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A releaseLog records the releases that reached a backend.
type releaseLog struct {
	mu   sync.Mutex
	refs []driver.Ref
}

func (l *releaseLog) release(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
	l.mu.Lock()
	l.refs = append(l.refs, r)
	l.mu.Unlock()
	return d.Release(ctx, r)
}

// of returns the releases of one ID.
func (l *releaseLog) of(id string) (refs []driver.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.refs {
		if r.ID == id {
			refs = append(refs, r)
		}
	}
	return refs
}

// A late or repeated request can queue a claim that its Client has forgotten. When the backend
// grants the key to it, the Client releases it. Otherwise the key would stay locked for the claim's
// heartbeat.
func TestUnknownGrantIsReleased(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, events, log := memlock.New(), make(chan driver.Event), new(releaseLog)
		c := client(t, &scripted{Opener: store, events: events, release: log.release}, dlock.Config{})
		holder := acquire(t, client(t, store, dlock.Config{}), "k")

		// A late request queues a claim of the Client, which has forgotten it.
		d, err := store.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		id := strings.Repeat("ab", 16)
		st, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: "k", ID: id, TTL: time.Minute}, Wait: true})
		if err != nil || st.Phase != driver.Queued {
			t.Fatalf("%+v, %v", st, err)
		}
		unlock(t, holder)
		grant := <-d.Events()
		if grant.ID != id || grant.State.Phase != driver.Held {
			t.Fatalf("the event is %+v", grant)
		}

		events <- grant
		synctest.Wait()
		if refs := log.of(id); len(refs) != 1 || refs[0].Key != "k" {
			t.Errorf("an unknown grant led to the releases %+v, want one", refs)
		}
		began := time.Now()
		unlock(t, acquire(t, c, "k"))
		if took := time.Since(began); took > 0 {
			t.Errorf("the key was free after %v", took)
		}
		elapse(time.Minute)
		if refs := log.of(id); len(refs) != 1 {
			t.Errorf("it was released %d times", len(refs))
		}
	})
}

// Repeated pushes of one unknown grant cause one release while that is in progress.
func TestUnknownGrantIsReleasedOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, log := make(chan driver.Event), new(releaseLog)
		slow := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			elapse(100 * time.Millisecond)
			return log.release(ctx, d, r)
		}
		client(t, &scripted{Opener: memlock.New(), events: events, release: slow}, dlock.Config{})
		id := strings.Repeat("cd", 16)
		for range 3 {
			events <- driver.Event{Key: "k", ID: id, State: driver.State{Phase: driver.Held, Token: 7}}
		}
		elapse(time.Minute)
		if n := len(log.of(id)); n != 1 {
			t.Errorf("three pushes of one unknown grant led to %d releases", n)
		}
	})
}

// Other pushes for an unknown claim have no effect.
func TestUnknownPushIsIgnored(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, log := make(chan driver.Event), new(releaseLog)
		c := client(t, &scripted{Opener: memlock.New(), events: events, release: log.release}, dlock.Config{})
		g := acquire(t, c, "k")
		for _, phase := range []driver.Phase{driver.Unknown, driver.Queued, driver.Gone} {
			events <- driver.Event{Key: "k", ID: strings.Repeat("ef", 16), State: driver.State{Phase: phase}}
		}
		elapse(time.Minute)
		if len(log.refs) != 0 {
			t.Errorf("released %+v", log.refs)
		}
		alive(t, g)
	})
}
