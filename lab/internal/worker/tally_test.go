package worker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// open opens a driver on clients that no server answers.
func open(t *testing.T, o driver.Opener) driver.Driver {
	t.Helper()
	d, err := o.Open(driver.Options{Prefix: Prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// What the lab runs can do what the driver can, and no more: otherwise the engine takes other ways than it
// takes for its users.
func TestTheTallyHidesNothing(t *testing.T) {
	log, err := event.Open(filepath.Join(t.TempDir(), "events"), "w")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	addrs := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	for kind, want := range map[string]string{
		"single": "LateReleaser", "sentinel": "HolderFinder", "cluster": "Leaver", "redlock": "Checker", "etcd": "Leaser",
	} {
		t.Run(kind, func(t *testing.T) {
			n := len(addrs)
			if kind == "single" {
				n = 1
			}
			clients, err := Connect(Backend{Kind: kind, Addrs: addrs[:n]})
			if err != nil {
				t.Fatal(err)
			}
			defer clients.Close()
			has, shows := abilities(open(t, clients.Locks())), abilities(open(t, tally(clients.Locks(), log)))
			if !slices.Equal(has, shows) || !slices.Contains(has, want) {
				t.Errorf("the driver has %v, and the lab shows %v", has, shows)
			}
			for _, m := range mutant.All {
				if strings.TrimRight(m.Topology, "-135") != kind {
					continue
				}
				broken, err := mutant.Apply(m.Name, clients.Locks(), mutant.Servers{Redis: clients.Redis, Nodes: clients.Nodes, Etcd: clients.Etcd})
				if err != nil {
					t.Fatal(err)
				}
				if has, shows := abilities(open(t, broken)), abilities(open(t, tally(broken, log))); !slices.Equal(has, shows) {
					t.Errorf("%s has %v, and the lab shows %v", m.Name, has, shows)
				}
			}
		})
	}
}

// late answers releases that nobody waits for.
type late struct {
	driver.LateReleaser
	err error
}

func (l late) ReleaseLater(_ driver.Ref, done func(driver.State, error)) { done(driver.State{}, l.err) }

// A release that is sent later counts as well.
func TestLateReleasesAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	log, err := event.Open(path, "w")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	answered := false
	one := &talliedLate{late{err: driver.Classify(context.DeadlineExceeded, driver.Ambiguous)}, &tallied{log: log}}
	one.ReleaseLater(driver.Ref{}, func(_ driver.State, err error) { answered = err != nil })
	all, err := event.Read(path)
	if err != nil || !answered || len(all) != 1 || all[0].Kind != event.Ambiguous || all[0].Note != "release" {
		t.Errorf("%v, %v, %+v", answered, err, all)
	}
}

// The log says when a lock was asked for that was granted at once, under the name that the section logs too.
func TestGrantsAreLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	log, err := event.Open(path, "w")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	store := memlock.New()
	client, err := dlock.New(&dlock.Config{}, dlock.WithBackend(opener(func(o driver.Options) (driver.Driver, error) {
		d, err := store.Open(o)
		return &tallied{Driver: d, log: log}, err
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	before := mono.Now()
	g, err := client.Acquire(t.Context(), "planned-0")
	if err != nil {
		t.Fatal(err)
	}
	all, err := event.Read(path)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %+v", err, all)
	}
	if e := all[0]; e.Kind != event.Granted || e.Key != "planned-0" || e.Fence != g.Token() || e.At-e.Dur < before || e.At > mono.Now() {
		t.Errorf("%+v, asked for at %d, token %d", e, before, g.Token())
	}
}
