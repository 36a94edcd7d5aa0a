package mutant

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Mutants that are wrong about time or about renewal.

// fromReceipt counts a lease from when the answer came.
func fromReceipt(Servers, *memory) hooks {
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			if st.Phase == driver.Held {
				st.Until = time.Now().Add(r.TTL)
			}
			return st, err
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			for i := range states {
				if states[i].Phase == driver.Held {
					states[i].Until = time.Now().Add(refs[i].TTL)
				}
			}
			return states, err
		},
	}
}

// noDeadline believes in a lock until the server says otherwise.
func noDeadline(Servers, *memory) hooks {
	far := func(st *driver.State) {
		if st.Phase == driver.Held {
			st.Until = time.Now().Add(time.Hour)
		}
	}
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			far(&st)
			return st, err
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			for i := range states {
				far(&states[i])
			}
			return states, err
		},
	}
}

// optimist takes a renewal that failed for one that succeeded.
func optimist(_ Servers, m *memory) hooks {
	return hooks{
		acquire: remember(m),
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			m.note(refs, states)
			if err == nil {
				return states, nil
			}
			for i, r := range refs {
				if i == len(states) {
					states = append(states, driver.State{})
				}
				if c := m.of(r.ID, nil); states[i].Phase == driver.Unknown && c.phase == driver.Held {
					states[i] = held(c.token, r.TTL)
				}
			}
			return states, nil
		},
	}
}

// remember notes what Acquire answered.
func remember(m *memory) func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
	return func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		st, err := d.Acquire(ctx, r)
		m.of(r.ID, func(c *remembered) { c.token, c.phase = st.Token, st.Phase })
		return st, err
	}
}

func (m *memory) note(refs []driver.Ref, states []driver.State) {
	for i, st := range states {
		if st.Phase != driver.Unknown {
			m.of(refs[i].ID, func(c *remembered) { c.token, c.phase = st.Token, st.Phase })
		}
	}
}

// ignoresLoss takes "not yours" for "not now".
func ignoresLoss(_ Servers, m *memory) hooks {
	return hooks{
		acquire: remember(m),
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			for i := range states {
				if c := m.of(refs[i].ID, nil); states[i].Phase == driver.Gone && c.phase == driver.Held {
					states[i] = held(c.token, refs[i].TTL)
				}
			}
			m.note(refs, states)
			return states, err
		},
	}
}

// givesUp stops renewing a claim after the first error.
func givesUp(_ Servers, m *memory) hooks {
	return hooks{renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
		states := make([]driver.State, len(refs))
		var live []driver.Ref
		var at []int
		for i, r := range refs {
			if !m.of(r.ID, nil).failed {
				live, at = append(live, r), append(at, i)
			}
		}
		if len(live) == 0 {
			return nil, errors.New("renewal was stopped")
		}
		answers, err := d.Renew(ctx, live)
		for j, i := range at {
			if j < len(answers) {
				states[i] = answers[j]
			}
			if err != nil && states[i].Phase == driver.Unknown {
				m.of(refs[i].ID, func(c *remembered) { c.failed = true })
			}
		}
		return states, err
	}}
}

// errorIsLoss takes the first renewal that is not answered for a loss.
func errorIsLoss(Servers, *memory) hooks {
	return hooks{renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
		states, err := d.Renew(ctx, refs)
		if err == nil {
			return states, nil
		}
		states = append(states, make([]driver.State, len(refs)-len(states))...)
		for i := range states {
			if states[i].Phase == driver.Unknown {
				states[i].Phase = driver.Gone
			}
		}
		return states, nil
	}}
}

// neverRenews answers renewals without asking, and counts on the lease all the same.
func neverRenews(_ Servers, m *memory) hooks {
	return hooks{
		acquire: remember(m),
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states := make([]driver.State, len(refs))
			for i, r := range refs {
				if c := m.of(r.ID, nil); c.phase == driver.Held {
					states[i] = held(c.token, r.TTL)
					continue
				}
				one, err := d.Renew(ctx, refs[i:i+1])
				if err == nil && len(one) == 1 {
					states[i] = one[0]
					m.note(refs[i:i+1], one)
				}
			}
			return states, nil
		},
	}
}
