package worker

import (
	"context"
	"fmt"
	"strings"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// tally logs every call that ended without an answer: the server may have carried it
// out or not, and may yet. How many there were says what "no ghosts" is worth. It also logs when a call
// for a lock that was granted at once was sent, because the lease counts from then. The engine asks
// a driver what else it can do, so what is returned can do the same as the driver, and no more.
func tally(healthy driver.Opener, log *event.Log) driver.Opener {
	return opener(func(o driver.Options) (driver.Driver, error) {
		d, err := healthy.Open(o)
		if err != nil {
			return nil, err
		}
		return count(d, log)
	})
}

// abilities are the optional interfaces that a driver may have. A backend that has another set of them needs
// a case in count.
func abilities(d driver.Driver) (all []string) {
	for _, one := range []struct {
		name string
		of   func() bool
	}{
		{"Admin", can[driver.Admin](d)},
		{"Batcher", can[driver.Batcher](d)},
		{"Checker", can[driver.Checker](d)},
		{"HolderFinder", can[driver.HolderFinder](d)},
		{"LateReleaser", can[driver.LateReleaser](d)},
		{"Leaser", can[driver.Leaser](d)},
		{"Leaver", can[driver.Leaver](d)},
	} {
		if one.of() {
			all = append(all, one.name)
		}
	}
	return all
}

func can[T any](d driver.Driver) func() bool {
	return func() bool { _, ok := d.(T); return ok }
}

func count(d driver.Driver, log *event.Log) (driver.Driver, error) {
	t := &tallied{Driver: d, log: log}
	b, _ := d.(driver.Batcher)
	several := &talliedBatcher{Batcher: b, of: t}
	admin, _ := d.(driver.Admin)
	checker, _ := d.(driver.Checker)
	finder, _ := d.(driver.HolderFinder)
	switch set := strings.Join(abilities(d), " "); set {
	case "":
		return t, nil
	case "Batcher": // a mutant
		return struct {
			*tallied
			*talliedBatcher
		}{t, several}, nil
	case "Admin Checker":
		return struct {
			*tallied
			driver.Admin
			driver.Checker
		}{t, admin, checker}, nil
	case "Admin Batcher Checker HolderFinder LateReleaser Leaver":
		return struct {
			*tallied
			driver.Admin
			*talliedBatcher
			driver.Checker
			driver.HolderFinder
			*talliedLate
			driver.Leaver
		}{t, admin, several, checker, finder, &talliedLate{d.(driver.LateReleaser), t}, d.(driver.Leaver)}, nil
	case "Admin Batcher Checker HolderFinder Leaser":
		return struct {
			*tallied
			driver.Admin
			*talliedBatcher
			driver.Checker
			driver.HolderFinder
			driver.Leaser
		}{t, admin, several, checker, finder, d.(driver.Leaser)}, nil
	default:
		return nil, fmt.Errorf("the lab counts the calls of no driver with %s", set)
	}
}

type opener func(driver.Options) (driver.Driver, error)

func (o opener) Open(opts driver.Options) (driver.Driver, error) { return o(opts) }

type tallied struct {
	driver.Driver
	log *event.Log
}

func (t *tallied) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	sent := mono.Now()
	s, err := t.Driver.Acquire(ctx, r)
	t.count(err, "acquire")
	if err == nil && s.Phase == driver.Held {
		now := mono.Now()
		t.log.Add(event.Event{At: now, Kind: event.Granted, Key: r.Key, Fence: s.Token, Dur: now - sent})
	}
	return s, err
}

func (t *tallied) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	s, err := t.Driver.Release(ctx, r)
	t.count(err, "release")
	return s, err
}

type talliedBatcher struct {
	driver.Batcher
	of *tallied
}

func (b *talliedBatcher) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	states, err := b.Batcher.AcquireBatch(ctx, rs)
	b.of.count(err, "acquire")
	return states, err
}

func (b *talliedBatcher) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.Batcher.ReleaseBatch(ctx, refs)
	b.of.count(err, "release")
	return states, err
}

type talliedLate struct {
	driver.LateReleaser
	of *tallied
}

func (l *talliedLate) ReleaseLater(r driver.Ref, done func(driver.State, error)) {
	l.LateReleaser.ReleaseLater(r, func(st driver.State, err error) {
		l.of.count(err, "release")
		done(st, err)
	})
}

func (t *tallied) count(err error, call string) {
	if err != nil && driver.ClassOf(err) == driver.Ambiguous {
		t.log.Add(event.Event{Kind: event.Ambiguous, Note: call})
	}
}
