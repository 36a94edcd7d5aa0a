package dlock_test

import (
	"context"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// scripted is a backend whose calls a test can implement itself, where the rules of faultdriver are
// not exact enough.
type scripted struct {
	driver.Opener
	acquire func(context.Context, driver.Driver, driver.Request) (driver.State, error)
	renew   func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error)
	release func(context.Context, driver.Driver, driver.Ref) (driver.State, error)
	check   func(context.Context) ([]driver.Finding, error)
	caps    func(*driver.Caps)
	events  chan driver.Event
	remote  bool
}

type scriptedDriver struct {
	driver.Driver
	s *scripted
}

func (s *scripted) Open(o driver.Options) (driver.Driver, error) {
	d, err := s.Opener.Open(o)
	return &scriptedDriver{d, s}, err
}

func (d *scriptedDriver) Caps() driver.Caps {
	c := d.Driver.Caps()
	c.Remote = d.s.remote
	if d.s.caps != nil {
		d.s.caps(&c)
	}
	return c
}

func (d *scriptedDriver) Events() <-chan driver.Event {
	if d.s.events != nil {
		return d.s.events
	}
	return d.Driver.Events()
}

func (d *scriptedDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if d.s.acquire != nil {
		return d.s.acquire(ctx, d.Driver, r)
	}
	return d.Driver.Acquire(ctx, r)
}

func (d *scriptedDriver) Renew(ctx context.Context, r []driver.Ref) ([]driver.State, error) {
	if d.s.renew != nil {
		return d.s.renew(ctx, d.Driver, r)
	}
	return d.Driver.Renew(ctx, r)
}

func (d *scriptedDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if d.s.release != nil {
		return d.s.release(ctx, d.Driver, r)
	}
	return d.Driver.Release(ctx, r)
}

func (d *scriptedDriver) Check(ctx context.Context) ([]driver.Finding, error) { return d.s.check(ctx) }
