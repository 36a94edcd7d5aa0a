package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// severalKeys is how many keys there are of which a call takes two or three.
const severalKeys = 4

// chooseKeys makes a task one for several keys, which share a slot of a cluster. Those of every second epoch
// have a long lease, so that what is left by mistake is seen; those of the others have the same as most
// locks, so that it can be judged how long they are free. What counts from when each key was granted is not
// asked for.
func (w *worker) chooseKeys(r *rand.Rand, t *task, epoch int64) {
	name := "several-{%d}-%d"
	if epoch%2 == 1 {
		name, t.ttl = "several-long-{%d}-%d", 5*w.orders.TTL
	}
	for _, i := range r.Perm(severalKeys)[:2+r.IntN(2)] {
		t.keys = append(t.keys, fmt.Sprintf(name, epoch, i))
	}
	t.hold = upTo(r, 20*time.Millisecond)
	t.anonymous = false // what a failed call leaves is told by its purpose
	t.verb, t.async = acquireAll, r.IntN(4) == 0
	switch n := r.IntN(8); {
	case n < 4 && w.orders.Setup.Reentrant: // which is how DoAll shows the tokens of all keys
		t.verb = doAll
	case n == 4:
		t.extend = t.ttl
	}
}

// parts are the tasks of the keys of a task.
func (t task) parts() []part {
	if t.keys == nil {
		return []part{{task: t}}
	}
	all := make([]part, len(t.keys))
	for i, key := range t.keys {
		all[i].task = t
		all[i].key, all[i].attempt, all[i].together = key, fmt.Sprintf("%s/%d", t.attempt, i), t.attempt
	}
	return all
}

func (w *worker) byGuards(ctx context.Context, s *session, t task, parts []part) error {
	patient, _, cancel := t.patient(ctx)
	defer cancel()
	all, err := s.client.AcquireAll(patient, t.keys, t.options()...)
	if err != nil {
		return err
	}
	for i := range parts {
		parts[i].token = all.Token(parts[i].key)
	}
	w.section(ctx, all.Context(), s, t, all, parts...)
	unlock, stop := t.unlocking(ctx)
	defer stop()
	began := mono.Now()
	w.releasedAll(parts, began, all.Unlock(unlock))
	return nil
}

func (w *worker) byDoAll(ctx context.Context, s *session, t task, parts []part) error {
	patient, stay, cancel := t.patient(ctx)
	defer cancel()
	done := int64(0)
	err := s.client.DoAll(patient, t.keys, func(inner context.Context) error {
		stay()
		if over := findTokens(inner, s, parts); over != nil {
			return over
		}
		guard, _ := dlock.FromContext(inner) // its context ends with the first of all
		w.section(ctx, inner, s, t, guard, parts...)
		done = mono.Now()
		return nil
	}, t.options()...)
	if done == 0 {
		return err
	}
	w.releasedAll(parts, done, err)
	return nil
}

// findTokens asks for each key inside DoAll once more, which shows its Guard.
func findTokens(inner context.Context, s *session, parts []part) error {
	for i := range parts {
		p := &parts[i]
		err := s.client.Do(inner, p.key, func(ctx context.Context) error {
			guard, _ := dlock.FromContext(ctx)
			p.token = guard.Token()
			return nil
		})
		if err != nil {
			return cmp.Or(context.Cause(inner), err)
		}
	}
	return nil
}

func (w *worker) releasedAll(parts []part, began int64, err error) {
	for _, p := range parts {
		w.released(p.task, began, errorFor(err, p.key))
	}
}

// concerns says whether an error of a call is about a key: it names that one, or none.
func concerns(err error, key string) bool {
	var of *dlock.Error
	return !errors.As(err, &of) || of.Key == "" || of.Key == key
}

// errorFor is what the error of a call for several keys says of one of them.
func errorFor(err error, key string) error {
	joined, ok := err.(interface{ Unwrap() []error }) // as errors.Join returns it
	if !ok {
		if err == nil || !concerns(err, key) {
			return nil
		}
		return err
	}
	var mine []error
	for _, one := range joined.Unwrap() {
		mine = append(mine, errorFor(one, key))
	}
	return errors.Join(mine...)
}
