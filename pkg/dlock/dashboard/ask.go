package dashboard

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

// An asker reads keys that are not in the list, or whose parts are not, for all viewers together: each
// key at most once per interval, and at most 16 keys in an interval and at a time.
type asker struct {
	poller *poller
	slots  chan struct{} // a slot is free again when its key is read and an interval has passed

	mu        sync.Mutex
	questions map[string]*question
}

// A question is about one key. Its answer is kept for an interval, unless it is errBusy.
type question struct {
	done chan struct{}
	rows map[string]*row
	at   time.Time
	err  error
}

const (
	askedAtOnce  = 16
	maxQuestions = 1000
)

var errBusy = errors.New("too many locks that are not in the list are asked for; try again")

func newAsker(p *poller) *asker {
	return &asker{poller: p, slots: make(chan struct{}, askedAtOnce), questions: map[string]*question{}}
}

// ask returns the rows of a key, and of the keys that an election or a job of this name has.
func (a *asker) ask(ctx context.Context, key string) (map[string]*row, time.Time, error) {
	a.mu.Lock()
	q := a.questions[key]
	if q == nil && len(a.questions) >= maxQuestions {
		a.mu.Unlock()
		return nil, time.Time{}, errBusy
	}
	if q == nil {
		q = &question{done: make(chan struct{})}
		a.questions[key] = q
		a.poller.handler.work.Go(func() { a.answer(key, q) }) //nolint:contextcheck // it outlives a viewer that leaves
	}
	a.mu.Unlock()
	select {
	case <-q.done:
		return q.rows, q.at, q.err
	case <-ctx.Done():
		return nil, time.Time{}, context.Cause(ctx)
	}
}

func (a *asker) answer(key string, q *question) {
	interval := a.poller.handler.settings.interval
	ctx, cancel := context.WithTimeout(a.poller.handler.closing, lockreader.Timeout)
	defer cancel()
	select {
	case a.slots <- struct{}{}:
		began := time.Now()
		q.rows, q.err = a.poller.readRows(ctx, key)
		time.AfterFunc(interval-time.Since(began), func() { <-a.slots })
	case <-ctx.Done():
		q.err = errBusy
		a.forget(key) // nothing was read, so the next viewer may ask
		close(q.done)
		return
	}
	q.at = time.Now()
	close(q.done)
	time.AfterFunc(interval, func() { a.forget(key) })
}

func (a *asker) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.questions, key)
}

// readRows inspects a key, and those with its parts.
func (p *poller) readRows(ctx context.Context, key string) (map[string]*row, error) {
	entries, err := p.reader.Read(ctx, relatedTo(key))
	if err != nil {
		return nil, err
	}
	rows := make(map[string]*row, len(entries))
	for i := range entries {
		r := newRow(&entries[i], p.client.Backend())
		if countsWaits(p.client.Backend()) {
			r.datePromotions(nil, 0, 0, 0)
		}
		if r.Error == "" || r.Key == key {
			rows[r.Key] = r
		}
	}
	findParts(rows, nil, time.Now())
	return rows, nil
}

const maxKey = 1024 // bytes, as in package dlock

// relatedTo returns a key, and the keys that an election or a job of this name has.
func relatedTo(key string) []string {
	keys := []string{key}
	for _, suffix := range []string{recipes.ValueSuffix, recipes.RunsSuffix} {
		if name, ok := strings.CutSuffix(key, suffix); ok && name != "" {
			keys = append(keys, name)
		}
		if len(key)+len(suffix) <= maxKey {
			keys = append(keys, key+suffix)
		}
	}
	return keys
}
