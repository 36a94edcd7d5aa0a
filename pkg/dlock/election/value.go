package election

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

func checkValue(value string) error {
	if len(value) > maxValue {
		return fmt.Errorf("%w: election: the value has %d bytes, more than %d", dlock.ErrInvalidConfig, len(value), maxValue)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%w: election: the value is not UTF-8 on one line", dlock.ErrInvalidConfig)
	}
	return nil
}

// SetValue changes the value that this process publishes while it leads: an address or a version, of at most 200 bytes. Others
// see it shortly after. It is kept for later terms.
func (e *Election) SetValue(value string) error {
	if err := checkValue(value); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.value = value
	select {
	case e.changed <- struct{}{}:
	default:
	}
	return nil
}

// valueKey is the lock whose holder's description carries the value of the leader.
func (e *Election) valueKey() string { return e.name + recipes.ValueSuffix }

// publish shows the value while this process leads.
func (e *Election) publish(ctx context.Context, term int64) {
	for ctx.Err() == nil {
		e.mu.Lock()
		value := e.value
		e.mu.Unlock()
		var shown *dlock.Guard
		if value != "" {
			g, err := e.locks.Acquire(ctx, e.valueKey(), e.options(recipes.Value(term, value))...)
			if err != nil && (!recipes.IsTemporary(err) || !sleep(ctx, e.poll)) {
				return // without a value
			}
			if err != nil {
				continue
			}
			shown = g
		}
		e.awaitChange(ctx, shown)
		if shown != nil {
			_ = shown.Unlock(ctx) // what is left ends with its lease
		}
	}
}

// awaitChange waits until the value is changed, is no longer shown, or the term ends.
func (e *Election) awaitChange(ctx context.Context, shown *dlock.Guard) {
	var lost <-chan struct{}
	if shown != nil {
		lost = shown.Done()
	}
	select {
	case <-ctx.Done():
	case <-e.changed:
	case <-lost:
	}
}
