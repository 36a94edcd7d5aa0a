package worker

import (
	"context"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// tally logs every call that ended without an answer: the server may have carried it
// out or not, and may yet. How many there were says what "no ghosts" is worth.
func tally(healthy driver.Opener, log *event.Log) driver.Opener {
	return opener(func(o driver.Options) (driver.Driver, error) {
		d, err := healthy.Open(o)
		if err != nil {
			return nil, err
		}
		t := &tallied{Driver: d, log: log}
		if admin, ok := d.(driver.Admin); ok {
			return struct {
				*tallied
				driver.Admin
			}{t, admin}, nil
		}
		return t, nil
	})
}

type opener func(driver.Options) (driver.Driver, error)

func (o opener) Open(opts driver.Options) (driver.Driver, error) { return o(opts) }

type tallied struct {
	driver.Driver
	log *event.Log
}

func (t *tallied) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	s, err := t.Driver.Acquire(ctx, r)
	t.count(err, "acquire")
	return s, err
}

func (t *tallied) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	s, err := t.Driver.Release(ctx, r)
	t.count(err, "release")
	return s, err
}

func (t *tallied) CanBatch(keys []string) bool {
	b, ok := t.Driver.(driver.Batcher)
	return ok && b.CanBatch(keys)
}

func (t *tallied) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	states, err := t.Driver.(driver.Batcher).AcquireBatch(ctx, rs)
	t.count(err, "acquire")
	return states, err
}

func (t *tallied) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := t.Driver.(driver.Batcher).ReleaseBatch(ctx, refs)
	t.count(err, "release")
	return states, err
}

func (t *tallied) count(err error, call string) {
	if err != nil && driver.ClassOf(err) == driver.Ambiguous {
		t.log.Add(event.Event{Kind: event.Ambiguous, Note: call})
	}
}
