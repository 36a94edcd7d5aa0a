// Package drivertest is the conformance suite for lock backends. The author of a driver.Driver runs
// it from a test:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
//			return &drivertest.Harness{Caps: caps, Open: open}
//		})
//	}
//
// The suite does not skip what the Caps of a Harness lack: it asserts that the backend returns
// ErrUnsupported, or behaves as documented without the capability.
package drivertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/internal/metronome"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// A Harness is a fresh store for one case, and a way to open drivers on it.
type Harness struct {
	// Caps is what the backend promises. The driver must return the same Caps.
	Caps driver.Caps
	// Open returns another driver on the same store, as another process would have. The suite
	// closes it.
	Open func(t *testing.T, o driver.Options) driver.Driver
	// Prefix is the prefix of the drivers that the suite opens. The default is "suite:".
	Prefix string
	// TTL is a lease that the suite keeps alive and lets expire. A stall of half that time fails a
	// correct backend, so a backend with its own servers needs seconds. The default is 600 ms, or
	// MinTTL if that is longer.
	TTL time.Duration
	// WaiterTTL is the TTL of a waiter that is not renewed. The default is TTL. The longer it is
	// compared with a heartbeat, the more reliably the suite detects a backend that grants such a
	// waiter a whole lease.
	WaiterTTL time.Duration
	// Slack is how much later than due a lease may end. The default is 250 ms.
	Slack time.Duration
	// Grants is the number of grants over which tokens must increase. The default is 10,000. With fewer than
	// 1,000, fewer pushes are left unread and fewer random keys tried; below 150, contenders lock less often.
	Grants int
	// NoAdmin says that the driver does not implement driver.Admin; NoEvict says that Evict is
	// unsupported.
	NoAdmin, NoEvict bool
	// Quorum says that a majority of several servers answers for all of them. What the others still
	// store of an ended claim may then be shown for as long as Slack.
	Quorum bool
	// Child returns a command that runs this package's Child on the same store. It is required for
	// a store that outlives a process.
	Child func(t *testing.T) *exec.Cmd
}

// An Option changes how the suite runs.
type Option func(*config)

type config struct {
	virtual      bool
	atOnce       bool
	only, except []string
	late         atomic.Int64 // calls that were late, in all cases of a run
}

// InVirtualTime runs every case in a bubble of testing/synctest, where leases expire without a real
// wait. It is for backends without I/O.
func InVirtualTime() Option { return func(c *config) { c.virtual = true } }

// AtOnce runs the cases that wait for leases at the same time, after the others. Each case then
// needs its own store or Prefix.
func AtOnce() Option { return func(c *config) { c.atOnce = true } }

// Only runs the cases with these names. It is for a backend that is tested in several settings: all
// cases should run in one of them.
func Only(names ...string) Option { return func(c *config) { c.only = names } }

// Except runs all cases except those with these names.
func Except(names ...string) Option { return func(c *config) { c.except = names } }

// selects reports whether a case is to run.
func (c *config) selects(name string) bool {
	return (c.only == nil || slices.Contains(c.only, name)) && !slices.Contains(c.except, name)
}

// validate fails a test that names a case that does not exist.
func (c *config) validate(t *testing.T) {
	t.Helper()
	for _, name := range append(slices.Clone(c.only), c.except...) {
		if !slices.ContainsFunc(cases, func(cs testCase) bool { return cs.name == name }) {
			t.Fatalf("drivertest: there is no case %q", name)
		}
	}
}

// Run checks a backend. newHarness is called once per case.
func Run(t *testing.T, newHarness func(*testing.T) *Harness, opts ...Option) {
	var c config
	for _, o := range opts {
		o(&c)
	}
	c.validate(t)
	run := func(cs testCase) {
		body := func(t *testing.T) { cs.run(newSuite(t, newHarness(t), &c)) }
		t.Run(cs.name, func(t *testing.T) {
			if c.virtual {
				synctest.Test(t, body)
				return
			}
			body(t)
		})
	}
	var together []testCase
	for _, cs := range cases {
		switch {
		case !c.selects(cs.name):
		case c.atOnce && cs.lasts():
			together = append(together, cs)
		default:
			run(cs)
		}
	}
	var wg sync.WaitGroup
	for _, cs := range together {
		wg.Go(func() { run(cs) })
	}
	wg.Wait()
}

type testCase struct {
	name string
	run  func(*suite)
}

// lasting lists the cases that wait for leases: they take time, but hardly any work.
var lasting = []string{
	"GhostHeads", "PatientWaiter", "SilentHolder", "RenewalKeeps", "RenewalSetsTTL", "UntilIsPessimistic", "GrantKeepsDeadline", "Crash",
	"ResubmissionRestarts", "FenceOutlastsLeases", "TombstoneLasts", "GroupLeases", "LateWaiter",
}

func (c testCase) lasts() bool { return slices.Contains(lasting, c.name) }

var cases = []testCase{
	{"Caps", caps},
	{"Submit", submit},
	{"RepeatSubmit", repeatSubmit},
	{"ResubmissionRestarts", resubmissionRestarts},
	{"TombstonedID", tombstonedID},
	{"TombstoneLasts", tombstoneLasts},
	{"ReleaseInAnyPhase", releaseInAnyPhase},
	{"OnlyTheHolderReleases", onlyTheHolderReleases},
	{"DeadContext", deadContext},
	{"Close", closing},
	{"Order", order},
	{"HandOff", handOff},
	{"Push", push},
	{"UnreadPushes", unreadPushes},
	{"CancelInQueue", cancelInQueue},
	{"GhostHeads", ghostHeads},
	{"PatientWaiter", patientWaiter},
	{"LateWaiter", lateWaiter},
	{"MixedBatch", mixedBatch},
	{"BigBatch", bigBatch},
	{"Batch", batch},
	{"RenewalNeverCreates", renewalNeverCreates},
	{"SilentHolder", silentHolder},
	{"RenewalKeeps", renewalKeeps},
	{"RenewalSetsTTL", renewalSetsTTL},
	{"UntilIsPessimistic", untilIsPessimistic},
	{"GrantKeepsDeadline", grantKeepsDeadline},
	{"FenceIncreases", fenceIncreases},
	{"FenceOutlastsLeases", fenceOutlastsLeases},
	{"TokenRange", fenceRange},
	{"UnsupportedModes", unsupportedModes},
	{"ReadersTogether", readersTogether},
	{"WriterIsNotStarved", writerIsNotStarved},
	{"PermitsWithinLimit", permitsWithinLimit},
	{"PermitsOfAnotherLimit", permitsOfAnotherLimit},
	{"GroupLeases", groupLeases},
	{"AdminList", adminList},
	{"BadCursor", badCursor},
	{"AdminInspect", adminInspect},
	{"LookAtHolder", lookAtHolder},
	{"AdminEvict", adminEvict},
	{"EvictedAsksAgain", evictedAsksAgain},
	{"EvictedIsStoredOnce", evictedIsStoredOnce},
	{"HostileKeys", hostileKeys},
	{"Prefixes", prefixes},
	{"MutualExclusion", mutualExclusion},
	{"Crash", crash},
}

// A suite is one running case.
type suite struct {
	*testing.T
	*Harness
	*config
	ctx context.Context

	asked   tally
	wasLate atomic.Bool // a call was: see excusesLate
}

func newSuite(t *testing.T, h *Harness, c *config) *suite {
	t.Helper()
	if h.Prefix == "" {
		h.Prefix = "suite:"
	}
	if h.TTL == 0 {
		h.TTL = max(600*time.Millisecond, h.Caps.MinTTL)
	}
	if h.WaiterTTL == 0 {
		h.WaiterTTL = h.TTL
	}
	if h.Slack == 0 {
		h.Slack = 250 * time.Millisecond
	}
	if h.Grants == 0 {
		h.Grants = 10_000
	}
	// A Driver may abandon a call early under a context that can be cancelled, and most calls should count.
	uncancelled := sharedtimeout.Uncancelled{Context: context.Background(), Values: context.Background()}
	s := &suite{T: t, Harness: h, config: c, ctx: uncancelled}
	t.Cleanup(s.judgeCalls)
	if !c.virtual {
		metronome.Start(t)
	}
	return s
}

// open returns a driver, which is closed when the case ends.
func (s *suite) open() driver.Driver { return s.openAs(driver.Options{Prefix: s.Prefix}) }

func (s *suite) openAs(o driver.Options) driver.Driver {
	s.Helper()
	o.Logger = discard
	d := s.Open(s.T, o)
	s.Cleanup(func() {
		if err := d.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	})
	return d
}

// longLease is longer than a case takes on a slow machine.
const longLease = 10 * time.Minute

// ref returns a new claim on key with a lease that does not expire during the case, held or queued.
func (s *suite) ref(key string) driver.Ref {
	ttl := max(longLease, s.Caps.MinTTL)
	return driver.Ref{Key: key, ID: newID(), TTL: ttl, QueueTTL: ttl}
}

// brief is ref with the lease that the case lets expire.
func (s *suite) brief(key string) driver.Ref {
	r := s.ref(key)
	r.TTL, r.QueueTTL = s.TTL, 0
	return r
}

func newID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// request submits without waiting; waiting submits and waits.
func request(r driver.Ref) driver.Request { return driver.Request{Ref: r} }
func waiting(r driver.Ref) driver.Request { return driver.Request{Ref: r, Wait: true} }

// submit submits a claim and asserts its phase.
func (s *suite) submit(d driver.Driver, r driver.Request, want driver.Phase) driver.State {
	s.Helper()
	st := s.acquire(d, r)
	if st.Phase != want {
		s.Fatalf("Acquire(%q) = %v, want %v", r.Key, st.Phase, want)
	}
	return st
}

func (s *suite) acquire(d driver.Driver, r driver.Request) driver.State {
	s.Helper()
	var st driver.State
	_, err := s.ask(func() (err error) { st, err = d.Acquire(s.ctx, r); return err })
	if err != nil {
		s.Fatalf("Acquire(%q): %v", r.Key, err)
	}
	return st
}

// renew renews one claim and asserts its phase.
func (s *suite) renew(d driver.Driver, r driver.Ref, want driver.Phase) driver.State {
	s.Helper()
	st := s.look(d, r)
	if st.Phase != want {
		s.Fatalf("Renew(%q) = %v, want %v", r.Key, st.Phase, want)
	}
	return st
}

func (s *suite) look(d driver.Driver, r driver.Ref) driver.State {
	s.Helper()
	var states []driver.State
	_, err := s.ask(func() (err error) { states, err = d.Renew(s.ctx, []driver.Ref{r}); return err })
	if err != nil || len(states) != 1 {
		s.Fatalf("Renew(%q) = %v, %v", r.Key, states, err)
	}
	return states[0]
}

// release releases a claim and asserts the phase that was found.
func (s *suite) release(d driver.Driver, r driver.Ref, want driver.Phase) {
	s.Helper()
	var st driver.State
	again, err := s.ask(func() (err error) { st, err = d.Release(s.ctx, r); return err })
	if err != nil {
		s.Fatalf("Release(%q): %v", r.Key, err)
	}
	isRepeated := again && st.Phase == driver.Gone
	if st.Phase != want && !isRepeated { // carried out at once, and not answered
		s.Fatalf("Release(%q) found %v, want %v", r.Key, st.Phase, want)
	}
}

// granted renews a claim until it is held.
func (s *suite) granted(d driver.Driver, r driver.Ref, within time.Duration) driver.State {
	s.Helper()
	var last driver.State
	s.eventually(within, "the claim is granted", func() bool {
		last = s.look(d, r)
		return last.Phase == driver.Held
	})
	return last
}

// takes tries new claims on key until one is granted, and returns it. It releases a claim that was
// not granted, because a repetition of its call may have been.
func (s *suite) takes(d driver.Driver, key string, within time.Duration) driver.Ref {
	s.Helper()
	var r driver.Ref
	begun := time.Now()
	s.eventually(within, "the key comes free", func() (ok bool) {
		r, ok = s.tries(d, key, begun)
		return ok
	})
	return r
}

// tries tries a new claim on a key whose lease began then. What is free early stays free, so that it
// pauses until the lease is almost over.
func (s *suite) tries(d driver.Driver, key string, begun time.Time) (r driver.Ref, ok bool) {
	s.Helper()
	r = s.ref(key)
	var st driver.State
	_, err := s.ask(func() (err error) { st, err = d.Acquire(s.ctx, request(r)); return err })
	if err == nil && st.Phase == driver.Held {
		return r, true
	}
	_, unreleased := s.ask(func() error { _, err := d.Release(s.ctx, r); return err })
	if err != nil || unreleased != nil {
		s.Errorf("Acquire(%q): %v; Release: %v", key, err, unreleased)
	}
	if time.Since(begun) < s.TTL*9/10 {
		elapse(s.TTL / 40)
	}
	return r, false
}

// eventually polls, because a lease ends without an event.
func (s *suite) eventually(within time.Duration, what string, ok func() bool) {
	s.Helper()
	if !s.polls(within, ok) {
		s.Fatalf("not within %v: %s", within, what)
	}
}

// polls reports whether ok becomes true in time.
func (s *suite) polls(within time.Duration, ok func() bool) bool {
	s.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(within); !ok(); elapse(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, max(s.TTL/400, 5*time.Millisecond))
	}
	return true
}

// elapse lets time pass, as leases need it.
func elapse(d time.Duration) { <-time.After(d) }
