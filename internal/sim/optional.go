package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// optional are the interfaces of package driver that a Driver may have in addition.
var optional = []struct {
	name string
	has  func(driver.Driver) bool
}{
	{"Admin", has[driver.Admin]},
	{"Batcher", has[driver.Batcher]},
	{"Checker", has[driver.Checker]},
	{"HolderFinder", has[driver.HolderFinder]},
	{"LateReleaser", has[driver.LateReleaser]},
	{"Leaser", has[driver.Leaser]},
	{"Leaver", has[driver.Leaver]},
}

func has[T any](d driver.Driver) bool {
	_, ok := d.(T)
	return ok
}

// optionalOf returns the names of the optional interfaces that a Driver has.
func optionalOf(d driver.Driver) (names []string) {
	for _, one := range optional {
		if one.has(d) {
			names = append(names, one.name)
		}
	}
	return names
}

// A wrapper forwards everything to a Driver. It must only be asked for what that Driver has.
type wrapper interface {
	driver.Driver
	driver.Admin
	driver.Batcher
	driver.Checker
	driver.HolderFinder
	driver.LateReleaser
	driver.Leaver
}

// The sets of optional interfaces that drivers have: those of redlock and files, of memory, and of Redis.
type (
	withAdmin struct {
		driver.Driver
		driver.Admin
		driver.Checker
	}
	withBatches struct {
		withAdmin
		driver.Batcher
	}
	withAll struct {
		withBatches
		driver.HolderFinder
		driver.LateReleaser
		driver.Leaver
	}
)

// expose returns a wrapper with the same optional interfaces as the Driver that it wraps: an engine must not be simulated without
// some of them, or with more. A set that no simulated driver has is an error.
func expose(d driver.Driver, w wrapper) (driver.Driver, error) {
	admin := withAdmin{w, w, w}
	batches := withBatches{admin, w}
	for _, shown := range []driver.Driver{admin, batches, withAll{batches, w, w, w}} {
		if slices.Equal(optionalOf(shown), optionalOf(d)) {
			return shown, nil
		}
	}
	return nil, fmt.Errorf("the simulator does not forward exactly %v of %T", optionalOf(d), d)
}

func (l *link) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	return l.Driver.(driver.Admin).List(ctx, prefix, cursor, limit)
}

func (l *link) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	return l.Driver.(driver.Admin).Evict(ctx, key, id, token)
}

func (l *link) Check(ctx context.Context) ([]driver.Finding, error) {
	return l.Driver.(driver.Checker).Check(ctx)
}

// Look is a message as Inspect is.
func (l *link) Look(ctx context.Context, key, except string) (driver.Claim, int, error) {
	type found struct {
		holder  driver.Claim
		waiting int
	}
	f, err := carry(ctx, l, "inspect "+key, func(d driver.Driver) (f found, err error) {
		f.holder, f.waiting, err = d.(driver.HolderFinder).Look(context.Background(), key, except)
		return f, err
	})
	return f.holder, f.waiting, err
}

// releaseLimit is how long a Client waits for the answer to a release that no caller waits for. A driver has such a limit.
const releaseLimit = 2 * time.Second

// ReleaseLater is sent at once, and no call waits for it.
func (l *link) ReleaseLater(r driver.Ref, done func(driver.State, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	l.pushes.Go(func() {
		defer cancel()
		done(l.Release(ctx, r))
	})
	l.sim.Go(func() {
		select {
		case <-l.done:
			cancel()
		case <-ctx.Done():
		}
	})
}

// SendReleases does nothing: none is delayed.
func (l *link) SendReleases() {}

// Leave is no message.
func (l *link) Leave(r driver.Ref) { l.Driver.(driver.Leaver).Leave(r) }

func (w *watched) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	return w.Driver.(driver.Admin).Inspect(ctx, key)
}

func (w *watched) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	return w.Driver.(driver.Admin).List(ctx, prefix, cursor, limit)
}

func (w *watched) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	return w.Driver.(driver.Admin).Evict(ctx, key, id, token)
}

func (w *watched) Check(ctx context.Context) ([]driver.Finding, error) {
	return w.Driver.(driver.Checker).Check(ctx)
}

func (w *watched) Look(ctx context.Context, key, except string) (driver.Claim, int, error) {
	return w.Driver.(driver.HolderFinder).Look(ctx, key, except)
}

func (w *watched) ReleaseLater(r driver.Ref, done func(driver.State, error)) {
	w.sim.releases(r)
	w.Driver.(driver.LateReleaser).ReleaseLater(r, done)
}

func (w *watched) SendReleases() { w.Driver.(driver.LateReleaser).SendReleases() }

func (w *watched) Leave(r driver.Ref) { w.Driver.(driver.Leaver).Leave(r) }
