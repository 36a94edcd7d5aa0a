package election_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/election"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func client(t *testing.T, b driver.Opener, cfg dlock.Config) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(b), dlock.WithAdmin())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A candidate is a process that stands for election and leads until its context ends.
type candidate struct {
	*election.Election
	client   *dlock.Client
	terms    chan int64 // that it was elected for
	leads    atomic.Bool
	resigned chan error
	stop     context.CancelFunc
	ended    chan error
}

func stand(t *testing.T, c *dlock.Client, opts ...election.Option) *candidate {
	t.Helper()
	n := &candidate{client: c, terms: make(chan int64, 100), resigned: make(chan error, 100), ended: make(chan error, 1)}
	var err error
	n.Election, err = election.New(c, "leader", election.Callbacks{
		OnElected: func(ctx context.Context, term int64) {
			n.leads.Store(true)
			defer n.leads.Store(false)
			n.terms <- term
			<-ctx.Done()
		},
		OnResigned: func(_ int64, cause error) { n.resigned <- cause },
	}, opts...)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() { n.ended <- n.Run(ctx) }()
	t.Cleanup(cancel)
	return n
}

// One of three leads; when it resigns, the next does, in order and with a greater term.
func TestResignPassesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		var all []*candidate
		for range 3 {
			all = append(all, stand(t, client(t, store, dlock.Config{})))
			synctest.Wait()
		}
		last := int64(0)
		for round := range 7 {
			now := all[round%3]
			term := <-now.terms
			if term <= last {
				t.Errorf("term %d after %d", term, last)
			}
			last = term
			for i, other := range all {
				own, leads := other.Term()
				if leads != (i == round%3) || (leads && own != term) {
					t.Errorf("round %d: candidate %d leads: %v, term %d", round, i, leads, own)
				}
				leader, err := other.Leader(t.Context())
				if err != nil || leader.Term != term {
					t.Errorf("candidate %d sees %+v, %v", i, leader, err)
				}
			}
			<-time.After(2 * time.Second) // a shorter term would be followed by a pause
			if err := all[(round+1)%3].Resign(t.Context()); !errors.Is(err, election.ErrNotLeader) {
				t.Errorf("a candidate resigns: %v", err)
			}
			check(t, now.Resign(t.Context()))
			if cause := <-now.resigned; !errors.Is(cause, election.ErrResigned) {
				t.Errorf("the cause is %v", cause)
			}
			synctest.Wait() // it stands again
		}
		for _, n := range all {
			n.stop()
			if err := <-n.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Run ends with %v", err)
			}
		}
		if _, err := all[0].Leader(t.Context()); !errors.Is(err, election.ErrNoLeader) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// OnElected returns by itself: that is a resignation without a cause, and the process stands again.
func TestReturningResigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		e, err := election.New(c, "leader", election.Callbacks{
			OnElected: func(context.Context, int64) {
				if terms++; terms == 3 {
					cancel()
				}
			},
			OnResigned: func(_ int64, cause error) {
				if cause != nil && ctx.Err() == nil {
					t.Errorf("the cause is %v", cause)
				}
			},
		})
		check(t, err)
		if err := e.Run(ctx); !errors.Is(err, context.Canceled) || terms != 3 {
			t.Errorf("%d terms, %v", terms, err)
		}
	})
}

// A leader that cannot renew is unhealthy before its context ends, and its context ends before another leads.
func TestLeaderWithoutBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		faults := faultdriver.New(store, 1)
		first := stand(t, client(t, faults, dlock.Config{DefaultTTL: 10 * time.Second}))
		<-first.terms
		second := stand(t, client(t, store, dlock.Config{DefaultTTL: 10 * time.Second}))
		<-time.After(time.Minute)
		check(t, first.Check(t.Context()))
		check(t, second.Check(t.Context()))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest})
		faults.Add(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseRequest})
		var unhealthy, over time.Time
		for over.IsZero() {
			if err := first.Check(t.Context()); err != nil && unhealthy.IsZero() {
				unhealthy = time.Now()
				if !errors.Is(err, election.ErrNotRenewed) {
					t.Errorf("the check says %v", err)
				}
			}
			select {
			case cause := <-first.resigned:
				over = time.Now()
				if !errors.Is(cause, dlock.ErrOwnershipLost) {
					t.Errorf("the cause is %v", cause)
				}
			case <-time.After(50 * time.Millisecond):
				if first.leads.Load() && second.leads.Load() {
					t.Fatal("two lead")
				}
			}
		}
		if unhealthy.IsZero() || !unhealthy.Before(over) {
			t.Errorf("unhealthy at %v, over at %v", unhealthy, over)
		}
		<-second.terms
		if took := time.Since(over); took > 11*time.Second {
			t.Errorf("the next leads after %v", took)
		}
	})
}

// When the leader shuts down, the next leads at once.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		first := stand(t, client(t, store, dlock.Config{}))
		<-first.terms
		second := stand(t, client(t, store, dlock.Config{}))
		<-time.After(time.Minute)
		began := time.Now()
		first.stop()
		<-second.terms
		if took := time.Since(began); took > time.Second {
			t.Errorf("the next leads after %v", took)
		}
		<-first.ended
	})
}

// A leader that needs a while to stop is the only one until it has stopped, if its Client is closed after Run has returned. The
// control closes it at once.
func TestCloseAfterRun(t *testing.T) {
	for _, waits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.New()
			first, elected := client(t, store, dlock.Config{}), make(chan struct{})
			var stopped atomic.Bool
			e, err := election.New(first, "leader", election.Callbacks{OnElected: func(ctx context.Context, _ int64) {
				close(elected)
				<-ctx.Done()
				time.Sleep(10 * time.Second)
				stopped.Store(true)
			}})
			check(t, err)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			<-elected
			second := stand(t, client(t, store, dlock.Config{}))
			synctest.Wait()
			stop()
			if waits {
				<-done
			}
			check(t, first.Close())
			<-second.terms
			if stopped.Load() != waits {
				t.Errorf("Close waits for Run: %v. The first has stopped when the second leads: %v", waits, stopped.Load())
			}
			if !waits {
				<-done
			}
			second.stop()
			<-second.ended
		})
	}
}

// The value of the leader is seen by all, changes with it, and is not taken for that of the next.
func TestValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		first := stand(t, client(t, store, dlock.Config{}), election.WithValue("10.0.0.1:80"))
		<-first.terms
		synctest.Wait() // it is published
		second := stand(t, client(t, store, dlock.Config{}))
		var seen []string
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for leader := range second.Observe(ctx) {
				seen = append(seen, fmt.Sprint(leader.Term, " ", leader.Value))
			}
		})
		<-time.After(2500 * time.Millisecond) // all changes are between two questions
		check(t, first.SetValue("10.0.0.1:81"))
		<-time.After(3 * time.Second)
		one, _ := first.Term()
		check(t, first.Resign(t.Context()))
		<-second.terms
		<-time.After(3 * time.Second)
		two, _ := second.Term()
		check(t, second.SetValue("10.0.0.2:80"))
		<-time.After(3 * time.Second)
		cancel()
		wg.Wait()
		want := []string{fmt.Sprint(one, " 10.0.0.1:80"), fmt.Sprint(one, " 10.0.0.1:81"), fmt.Sprint(two, " "), fmt.Sprint(two, " 10.0.0.2:80")}
		if !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
		for _, bad := range []string{strings.Repeat("x", 201), "a\nb", "\xff"} {
			if err := first.SetValue(bad); !errors.Is(err, dlock.ErrInvalidConfig) {
				t.Errorf("the value %q: %v", bad, err)
			}
		}
	})
}

// Everyone hears of each new leader, once.
func TestNewLeaderIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		heard := make(chan election.Leader, 10)
		first := stand(t, client(t, store, dlock.Config{}))
		term := <-first.terms
		e, err := election.New(client(t, store, dlock.Config{}), "leader", election.Callbacks{
			OnElected: func(ctx context.Context, _ int64) { <-ctx.Done() }, OnNewLeader: func(l election.Leader) { heard <- l },
		})
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		if l := <-heard; l.Term != term || l.PID == 0 || l.Host == "" || l.Owner == "" {
			t.Errorf("heard of %+v", l)
		}
		<-time.After(time.Minute)
		if err := e.Run(ctx); !errors.Is(err, election.ErrRunning) {
			t.Errorf("a second Run: %v", err)
		}
		first.stop()
		if l := <-heard; l.Term <= term {
			t.Errorf("heard of %+v", l)
		}
		cancel()
		<-ended
		if len(heard) > 0 {
			t.Errorf("heard again of %+v", <-heard)
		}
	})
}

// With lost calls, answers and pushes, five candidates never lead at the same time.
func TestNeverTwoLeaders(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			faults := faultdriver.New(memlock.New(), seed,
				faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Chance: 0.1},
				faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Chance: 0.3},
				faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Chance: 0.2})
			var leading, terms atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 5 {
				e, err := election.New(client(t, faults, dlock.Config{DefaultTTL: 3 * time.Second}), "leader", election.Callbacks{
					OnElected: func(ctx context.Context, _ int64) {
						if leading.Add(1) != 1 {
							t.Error("two lead")
						}
						terms.Add(1)
						select {
						case <-ctx.Done():
						case <-time.After(4 * time.Second):
						}
						leading.Add(-1)
					},
				})
				check(t, err)
				wg.Go(func() { _ = e.Run(ctx) })
			}
			<-time.After(10 * time.Minute)
			cancel()
			wg.Wait()
			if terms.Load() < 50 {
				t.Errorf("%d terms in ten minutes", terms.Load())
			}
		})
	}
}

func TestBadInput(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{})
	run := election.Callbacks{OnElected: func(context.Context, int64) {}}
	for name, bad := range map[string]func() (*election.Election, error){
		"client":    func() (*election.Election, error) { return election.New(nil, "leader", run) },
		"name":      func() (*election.Election, error) { return election.New(c, "", run) },
		"long name": func() (*election.Election, error) { return election.New(c, strings.Repeat("x", 1020), run) },
		"callback":  func() (*election.Election, error) { return election.New(c, "leader", election.Callbacks{}) },
		"option":    func() (*election.Election, error) { return election.New(c, "leader", run, nil) },
		"TTL":       func() (*election.Election, error) { return election.New(c, "leader", run, election.WithTTL(-1)) },
		"poll":      func() (*election.Election, error) { return election.New(c, "leader", run, election.WithPoll(0)) },
		"value": func() (*election.Election, error) {
			return election.New(c, "leader", run, election.WithValue(strings.Repeat("x", 300)))
		},
	} {
		e, err := bad()
		if err == nil || e != nil {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	some, err := election.New(c, "leader", run)
	check(t, err)
	//nolint:staticcheck // what a caller may do
	for name, err := range map[string]error{"Run": some.Run(nil), "Resign": some.Resign(nil)} {
		if !errors.Is(err, dlock.ErrInvalidConfig) {
			t.Errorf("%s without a context: %v", name, err)
		}
	}
	closed := client(t, memlock.New(), dlock.Config{})
	check(t, closed.Close())
	e, err := election.New(closed, "leader", run)
	check(t, err)
	if err := e.Run(t.Context()); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("on a closed Client: %v", err)
	}
	for leader := range e.Observe(t.Context()) { // it ends
		t.Errorf("on a closed Client %+v leads", leader)
	}
}

// OnElected resigns with its own context, and panics: the lease is given back both times.
func TestResignInsideAndPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		var e *election.Election
		terms := 0
		e, err := election.New(client(t, store, dlock.Config{}), "leader", election.Callbacks{OnElected: func(ctx context.Context, _ int64) {
			if terms++; terms == 2 {
				panic("of the user")
			}
			if err := e.Resign(ctx); !errors.Is(err, election.ErrResigned) {
				t.Errorf("Resign inside: %v", err)
			}
		}})
		check(t, err)
		func() {
			defer func() {
				if recover() != "of the user" {
					t.Error("the panic was swallowed")
				}
			}()
			_ = e.Run(t.Context())
		}()
		synctest.Wait()
		if _, err := e.Leader(t.Context()); !errors.Is(err, election.ErrNoLeader) || terms != 2 {
			t.Errorf("after %d terms: %v", terms, err)
		}
	})
}

// A process that gives its lease back is healthy, however long the backend takes.
func TestHealthyWhileResigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := faultdriver.New(memlock.New(), 1, faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Delay, Delay: time.Second})
		c := stand(t, client(t, faults, dlock.Config{}))
		<-c.terms
		time.Sleep(time.Minute)
		done := make(chan error, 1)
		go func() { done <- c.Resign(t.Context()) }()
		for range 9 {
			time.Sleep(100 * time.Millisecond)
			check(t, c.Check(t.Context()))
		}
		check(t, <-done)
		c.stop()
		<-c.ended
	})
}

// The name of a lock that cannot be ends an observation at once.
func TestObserveEndsIfTheBackendRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := election.New(client(t, memlock.New(), dlock.Config{}), "a\nb", election.Callbacks{OnElected: func(context.Context, int64) {}})
		check(t, err)
		for l := range e.Observe(t.Context()) {
			t.Errorf("%v leads", l)
		}
		for l := range e.Observe(nil) { //nolint:staticcheck // what is shown is that it does not panic
			t.Errorf("%v leads", l)
		}
	})
}

// Work that fails at once does not make the process stand without a pause.
func TestShortTermsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := 0
		e, err := election.New(client(t, memlock.New(), dlock.Config{}), "leader", election.Callbacks{OnElected: func(context.Context, int64) { terms++ }})
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_ = e.Run(ctx)
		if terms < 50 || terms > 61 {
			t.Errorf("%d terms in a minute", terms)
		}
	})
}
