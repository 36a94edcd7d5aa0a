package drivertest_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// backend is what a broken backend wraps: a memory driver with every capability.
type backend interface {
	driver.Driver
	driver.Admin
}

// A brokenBackend breaks one promise, which a case of the suite must detect.
type brokenBackend struct {
	caughtBy string
	make     func(backend) driver.Driver
}

var broken = map[string]brokenBackend{
	"caps that promise too much":        {"Caps", func(b backend) driver.Driver { return &boaster{backend: b} }},
	"until counted from the answer":     {"UntilIsPessimistic", func(b backend) driver.Driver { return &optimist{backend: b} }},
	"until of another hour":             {"Submit", func(b backend) driver.Driver { return &dreamer{backend: b} }},
	"a new claim for every attempt":     {"RepeatSubmit", func(b backend) driver.Driver { return &renamer{backend: b} }},
	"tombstones forgotten":              {"TombstonedID", func(b backend) driver.Driver { return &forgiver{backend: b} }},
	"anybody may release":               {"OnlyTheHolderReleases", func(b backend) driver.Driver { return &thief{backend: b} }},
	"release always says held":          {"ReleaseInAnyPhase", func(b backend) driver.Driver { return &yesman{backend: b} }},
	"waiters cannot cancel":             {"CancelInQueue", func(b backend) driver.Driver { return &clinger{backend: b} }},
	"whoever asks first gets it":        {"Order", func(b backend) driver.Driver { return newPoller(b) }},
	"grants are not pushed":             {"Push", newMute},
	"pushes name another claim":         {"Push", newGossip},
	"dead waiters stay in the queue":    {"GhostHeads", func(b backend) driver.Driver { return &undead{backend: b} }},
	"waiters are not renewed":           {"PatientWaiter", func(b backend) driver.Driver { return &impatient{backend: b} }},
	"only the first of a batch":         {"MixedBatch", func(b backend) driver.Driver { return &lazy{backend: b} }},
	"renewal creates":                   {"RenewalNeverCreates", func(b backend) driver.Driver { return &reviver{backend: b} }},
	"renewal revives what has expired":  {"SilentHolder", func(b backend) driver.Driver { return &reviver{backend: b} }},
	"leases never end":                  {"SilentHolder", func(b backend) driver.Driver { return &immortal{backend: b} }},
	"renewal extends nothing":           {"RenewalKeeps", func(b backend) driver.Driver { return &idler{backend: b} }},
	"a grant starts a new lease":        {"GrantKeepsDeadline", newGenerous},
	"fences repeat":                     {"FenceIncreases", func(b backend) driver.Driver { return &stutterer{backend: b} }},
	"ranges of fences overlap":          {"TokenRange", func(b backend) driver.Driver { return &miser{backend: b} }},
	"readers exclude each other":        {"ReadersTogether", func(b backend) driver.Driver { return &hermit{backend: b} }},
	"one permit too many":               {"PermitsWithinLimit", func(b backend) driver.Driver { return &host{backend: b} }},
	"list shows other prefixes":         {"AdminList", func(b backend) driver.Driver { return &blabber{backend: b} }},
	"any text is a cursor":              {"BadCursor", func(b backend) driver.Driver { return &drifter{backend: b} }},
	"queue shown in reverse":            {"AdminInspect", func(b backend) driver.Driver { return &mirror{backend: b} }},
	"a waiter taken for the holder":     {"LookAtHolder", func(b backend) driver.Driver { return &mistaken{backend: b} }},
	"evict without comparing":           {"AdminEvict", func(b backend) driver.Driver { return &bouncer{backend: b} }},
	"an evicted claim is remembered":    {"EvictedAsksAgain", func(b backend) driver.Driver { return &rememberer{backend: b} }},
	"a claim stored again is the old":   {"EvictedIsStoredOnce", func(b backend) driver.Driver { return &nostalgic{backend: b, first: map[string]int64{}} }},
	"keys differ only in case":          {"HostileKeys", func(b backend) driver.Driver { return &folder{backend: b} }},
	"keys cut at the slash":             {"HostileKeys", func(b backend) driver.Driver { return &cutter{backend: b} }},
	"two holders at a time":             {"MutualExclusion", func(b backend) driver.Driver { return &sharer{backend: b} }},
	"close leaves events open":          {"Close", newLeaver},
	"waiters get no tombstones":         {"TombstonedID", func(b backend) driver.Driver { return &lenient{backend: b} }},
	"tombstones end after a second":     {"TombstoneLasts", func(b backend) driver.Driver { return &forgetful{backend: b, tombstones: map[string]time.Time{}} }},
	"a hundred of a batch":              {"BigBatch", func(b backend) driver.Driver { return &skipper{backend: b} }},
	"submitting again restarts nothing": {"ResubmissionRestarts", func(b backend) driver.Driver { return &copyist{backend: b, submitted: map[string]driver.State{}} }},
	"a token after a lease is old":      {"FenceOutlastsLeases", func(b backend) driver.Driver { return &recycler{backend: b, last: map[string]int64{}} }},
	"leases of readers never end":       {"GroupLeases", func(b backend) driver.Driver { return &librarian{backend: b} }},
	"renewals of readers keep nothing":  {"GroupLeases", func(b backend) driver.Driver { return &bouncingReader{backend: b, readers: map[string]bool{}} }},
	"dead contexts are ignored":         {"DeadContext", func(b backend) driver.Driver { return &stubborn{backend: b} }},
	"unknown modes taken for exclusive": {"UnsupportedModes", func(b backend) driver.Driver { return &pleaser{backend: b} }},
}

// rememberer refuses a key whose lock it believes to have, without asking.
type rememberer struct {
	backend
	mu  sync.Mutex
	has string
}

func (b *rememberer) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has != "" && b.has != r.ID {
		return driver.State{Phase: driver.Gone}, nil
	}
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		b.has = r.ID
	}
	return st, err
}

type boaster struct{ backend }

func (b *boaster) Caps() driver.Caps {
	c := b.backend.Caps()
	c.MinTTL = time.Nanosecond
	return c
}

type optimist struct{ backend }

func (b *optimist) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		st.Until = st.Until.Add(20 * time.Millisecond) // as long as the way back may take
	}
	return st, err
}

type dreamer struct{ backend }

func (b *dreamer) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	st.Until = st.Until.Add(time.Hour)
	return st, err
}

type renamer struct {
	backend
	mu sync.Mutex
	n  int
}

func (b *renamer) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	b.mu.Lock()
	b.n++
	if b.n > 1 {
		r.ID += "again"
	}
	b.mu.Unlock()
	return b.backend.Acquire(ctx, r)
}

type forgiver struct{ backend }

func (b *forgiver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	r.Unanswered = false
	return b.backend.Release(ctx, r)
}

type thief struct{ backend }

func (b *thief) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	st, err := b.backend.Release(ctx, r)
	claims, _ := b.Inspect(ctx, r.Key)
	if st.Phase == driver.Gone && len(claims) > 0 {
		_, _ = b.backend.Release(ctx, driver.Ref{Key: r.Key, ID: claims[0].ID})
	}
	return st, err
}

type yesman struct{ backend }

func (b *yesman) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	st, err := b.backend.Release(ctx, r)
	st.Phase = driver.Held
	return st, err
}

type clinger struct{ backend }

func (b *clinger) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	claims, _ := b.Inspect(ctx, r.Key)
	for _, c := range claims {
		if c.ID == r.ID && c.Phase == driver.Queued {
			return driver.State{Phase: driver.Queued}, nil
		}
	}
	return b.backend.Release(ctx, r)
}

// poller has no queue: waiters try again whenever they renew.
type poller struct {
	backend
	mu      sync.Mutex
	waiting map[string]driver.Request
}

func newPoller(b backend) *poller { return &poller{backend: b, waiting: map[string]driver.Request{}} }

func (b *poller) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	wait := r.Wait
	r.Wait = false
	st, err := b.backend.Acquire(ctx, r)
	if wait && err == nil && st.Phase == driver.Gone {
		b.mu.Lock()
		b.waiting[r.ID] = r
		b.mu.Unlock()
		return driver.State{Phase: driver.Queued, Ahead: 1, Until: time.Now().Add(driver.Heartbeat(r.TTL))}, nil
	}
	return st, err
}

func (b *poller) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		b.mu.Lock()
		r, ok := b.waiting[refs[i].ID]
		b.mu.Unlock()
		if !ok || states[i].Phase != driver.Gone {
			continue
		}
		r.Wait = true
		states[i], err = b.Acquire(ctx, r)
	}
	return states, err
}

func (b *poller) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	st, err := b.backend.Release(ctx, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.waiting[r.ID]; ok && st.Phase == driver.Gone {
		st.Phase = driver.Queued
	}
	delete(b.waiting, r.ID)
	return st, err
}

// forwarder forwards pushes through its own channel.
type forwarder struct {
	backend
	events chan driver.Event
}

func newForwarder(b backend, change func(driver.Event) (driver.Event, bool)) *forwarder {
	r := &forwarder{backend: b, events: make(chan driver.Event, 1024)}
	go func() {
		defer close(r.events)
		for ev := range b.Events() {
			if ev, ok := change(ev); ok {
				r.events <- ev
			}
		}
	}()
	return r
}

func (r *forwarder) Events() <-chan driver.Event { return r.events }

func newMute(b backend) driver.Driver {
	return newForwarder(b, func(ev driver.Event) (driver.Event, bool) { return ev, false })
}

func newGossip(b backend) driver.Driver {
	return newForwarder(b, func(ev driver.Event) (driver.Event, bool) {
		ev.ID = strings.Repeat("0", 32)
		return ev, true
	})
}

// undead renews the waiters of all drivers whenever any driver renews.
type undead struct {
	backend
	waiters []driver.Ref
}

func (b *undead) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Wait {
		b.waiters = append(b.waiters, r.Ref)
	}
	return b.backend.Acquire(ctx, r)
}

func (b *undead) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if _, err := b.backend.Renew(ctx, b.waiters); err != nil {
		return nil, err
	}
	return b.backend.Renew(ctx, refs)
}

type impatient struct{ backend }

func (b *impatient) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	var holders []driver.Ref
	for _, r := range refs {
		if claims, _ := b.Inspect(ctx, r.Key); len(claims) > 0 && claims[0].ID == r.ID {
			holders = append(holders, r)
		}
	}
	if len(holders) == len(refs) {
		return b.backend.Renew(ctx, refs)
	}
	states := make([]driver.State, len(refs))
	for i, r := range refs {
		states[i] = driver.State{Phase: driver.Gone}
		claims, _ := b.Inspect(ctx, r.Key)
		for _, c := range claims {
			if c.ID == r.ID {
				states[i] = driver.State{Phase: c.Phase, Token: c.Token, Until: time.Now().Add(c.Remaining)}
			}
		}
	}
	return states, nil
}

type lazy struct{ backend }

func (b *lazy) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	if len(refs) == 0 {
		return states, nil
	}
	first, err := b.backend.Renew(ctx, refs[:1])
	for i := range states {
		states[i] = first[0]
	}
	return states, err
}

type reviver struct{ backend }

func (b *reviver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		if states[i].Phase == driver.Gone {
			states[i], err = b.Acquire(ctx, driver.Request{Ref: refs[i]})
		}
	}
	return states, err
}

type immortal struct{ backend }

func (b *immortal) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	ttl := r.TTL
	r.TTL = 24 * time.Hour
	st, err := b.backend.Acquire(ctx, r)
	st.Until = st.Until.Add(ttl - r.TTL)
	return st, err
}

type idler struct{ backend }

func (b *idler) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	for i, r := range refs {
		states[i] = driver.State{Phase: driver.Gone}
		claims, _ := b.Inspect(ctx, r.Key)
		for _, c := range claims {
			if c.ID == r.ID {
				states[i] = driver.State{Phase: c.Phase, Token: c.Token, Until: time.Now().Add(r.TTL)}
			}
		}
	}
	return states, nil
}

// generous renews a claim when it is granted, as if the grant were a call.
func newGenerous(b backend) driver.Driver {
	return newForwarder(b, func(ev driver.Event) (driver.Event, bool) {
		_, _ = b.Renew(context.Background(), []driver.Ref{{Key: ev.Key, ID: ev.ID, TTL: 10 * time.Second}})
		return ev, true
	})
}

type stutterer struct{ backend }

func (b *stutterer) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	if st.Token > 0 {
		st.Token = (st.Token + 1) / 2
	}
	return st, err
}

type miser struct{ backend }

func (b *miser) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	r.Tokens = 0
	return b.backend.Acquire(ctx, r)
}

type hermit struct{ backend }

func (b *hermit) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Mode == driver.Shared {
		r.Mode = driver.Exclusive
	}
	return b.backend.Acquire(ctx, r)
}

type host struct{ backend }

func (b *host) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Mode == driver.Permit {
		r.Limit++
	}
	return b.backend.Acquire(ctx, r)
}

// drifter begins at the start if it does not know the cursor.
type drifter struct{ backend }

func (d *drifter) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	keys, next, err := d.backend.List(ctx, prefix, cursor, limit)
	if err != nil && cursor != "" {
		return d.backend.List(ctx, prefix, "", limit)
	}
	return keys, next, err
}

type blabber struct{ backend }

func (b *blabber) List(ctx context.Context, _, cursor string, limit int) ([]string, string, error) {
	return b.backend.List(ctx, "", cursor, limit)
}

// mistaken reports the claim that came last.
type mistaken struct{ backend }

func (b *mistaken) Look(ctx context.Context, key, except string) (driver.Claim, int, error) {
	claims, err := b.Inspect(ctx, key)
	claims = slices.DeleteFunc(claims, func(c driver.Claim) bool { return c.ID == except })
	if len(claims) == 0 || err != nil {
		return driver.Claim{}, 0, err
	}
	return claims[len(claims)-1], len(claims) - 1, nil
}

type mirror struct{ backend }

func (b *mirror) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	claims, err := b.backend.Inspect(ctx, key)
	for i, j := 1, len(claims)-1; i < j; i, j = i+1, j-1 {
		claims[i], claims[j] = claims[j], claims[i]
	}
	return claims, err
}

type bouncer struct{ backend }

func (b *bouncer) Evict(ctx context.Context, key, _ string, _ int64) (driver.State, error) {
	claims, err := b.Inspect(ctx, key)
	if err != nil || len(claims) == 0 {
		return driver.State{Phase: driver.Gone}, err
	}
	return b.backend.Evict(ctx, key, claims[0].ID, claims[0].Token)
}

type folder struct{ backend }

func (b *folder) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	r.Key = strings.ToLower(r.Key)
	return b.backend.Acquire(ctx, r)
}

type cutter struct{ backend }

func (b *cutter) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if head, _, ok := strings.Cut(r.Key, "/"); ok && head != "" {
		r.Key = head
	}
	return b.backend.Acquire(ctx, r)
}

type sharer struct{ backend }

func (b *sharer) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	r.Mode, r.Limit = driver.Permit, 2
	return b.backend.Acquire(ctx, r)
}

type leaver struct {
	backend
	events chan driver.Event
}

func newLeaver(b backend) driver.Driver {
	return &leaver{backend: b, events: make(chan driver.Event)}
}

func (b *leaver) Events() <-chan driver.Event { return b.events }

type stubborn struct{ backend }

func (b *stubborn) Acquire(_ context.Context, r driver.Request) (driver.State, error) {
	return b.backend.Acquire(context.Background(), r)
}

type pleaser struct{ backend }

func (b *pleaser) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Mode > driver.Permit {
		r.Mode = driver.Exclusive
	}
	return b.backend.Acquire(ctx, r)
}

// lenient leaves no tombstone for a waiter.
type lenient struct{ backend }

func (b *lenient) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	unanswered := r.Unanswered
	r.Unanswered = false
	st, err := b.backend.Release(ctx, r)
	if unanswered && st.Phase != driver.Queued {
		r.Unanswered = true
		_, _ = b.backend.Release(ctx, r)
	}
	return st, err
}

// forgetful keeps its tombstones for only a second.
type forgetful struct {
	backend
	mu         sync.Mutex
	tombstones map[string]time.Time
}

func (b *forgetful) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Unanswered {
		b.tombstones[r.ID] = time.Now().Add(time.Second)
	}
	r.Unanswered = false
	return b.backend.Release(ctx, r)
}

func (b *forgetful) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.tombstones[r.ID]) {
		return driver.State{Phase: driver.Gone}, nil
	}
	return b.backend.Acquire(ctx, r)
}

// skipper renews at most a hundred claims, and reports that all are held.
type skipper struct{ backend }

func (b *skipper) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs[:min(len(refs), 100)])
	for len(states) < len(refs) {
		states = append(states, states[0])
	}
	return states, err
}

// copyist answers a resubmission from memory.
type copyist struct {
	backend
	submitted map[string]driver.State
}

func (b *copyist) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if st, ok := b.submitted[r.ID]; ok {
		st.Until = time.Now().Add(r.TTL)
		return st, nil
	}
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		b.submitted[r.ID] = st
	}
	return st, err
}

// recycler gives the token of a claim that was never released to the next one.
type recycler struct {
	backend
	last map[string]int64
}

// recycled holds the tokens of claims that were not released, by key, for all drivers.
var recycled sync.Map

func (b *recycler) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		if old, ok := recycled.LoadOrStore(r.Key, st.Token); ok {
			st.Token, _ = old.(int64)
		}
		b.last[r.ID] = st.Token
	}
	return st, err
}

func (b *recycler) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		if token := b.last[refs[i].ID]; token != 0 && states[i].Phase == driver.Held {
			states[i].Token = token
		}
	}
	return states, err
}

func (b *recycler) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	st, err := b.backend.Release(ctx, r)
	if st.Phase == driver.Held {
		recycled.Delete(r.Key)
	}
	return st, err
}

// librarian lets readers and permits hold for an hour.
type librarian struct{ backend }

func (b *librarian) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	ttl := r.TTL
	if r.Mode != driver.Exclusive {
		r.TTL = time.Hour
	}
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		st.Until = time.Now().Add(ttl)
	}
	return st, err
}

// bouncingReader reports that readers are renewed, and does nothing.
type bouncingReader struct {
	backend
	readers map[string]bool
}

func (b *bouncingReader) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	b.readers[r.ID] = r.Mode != driver.Exclusive && st.Phase == driver.Held
	return st, err
}

func (b *bouncingReader) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if len(refs) == 1 && b.readers[refs[0].ID] {
		return []driver.State{{Phase: driver.Held, Until: time.Now().Add(refs[0].TTL)}}, nil
	}
	return b.backend.Renew(ctx, refs)
}
