package cli

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A lock is what is shown of a key. Its JSON is documented in docs/cli.md.
type lock struct {
	Key     string  `json:"key"`
	Mode    string  `json:"mode,omitempty"`
	Limit   int     `json:"limit,omitempty"` // of permits
	Token   int64   `json:"token,omitempty"` // the greatest token of the holders
	Holders []claim `json:"holders"`
	Waiters *int    `json:"waiters"` // nil where the backend does not know
	Error   string  `json:"error,omitempty"`

	queue []claim
}

// A claim is a holder or a waiter.
type claim struct {
	Mode  string `json:"mode"`
	Limit int    `json:"limit,omitempty"`
	Token int64  `json:"token,omitempty"`
	dlock.Info
	Trace   string   `json:"trace,omitempty"`
	Held    *float64 `json:"held_for_seconds,omitempty"`
	Waiting *float64 `json:"waiting_for_seconds,omitempty"`
	Left    *float64 `json:"lease_left_seconds"` // nil without a lease, or if it is not known

	age, left time.Duration
}

// locks are those of a backend.
type locks struct {
	*session
	admin *dlock.Admin
}

// answerWithin limits a question to the backend.
const answerWithin = 10 * time.Second

func (s *session) locks() (*locks, error) {
	a, err := s.admin()
	if err != nil {
		return nil, err
	}
	return &locks{s, a}, nil
}

// page is how many keys are asked for, and held in memory, at a time.
const page = 500

// pages calls do with the keys that begin with prefix, page by page, each in order;
// limit is how many keys at most, 0 for all. next is where to go on.
func (l *locks) pages(ctx context.Context, prefix, cursor string, limit int, do func(keys []string) error) (next string, err error) {
	for seen := 0; ; {
		most := page
		if limit > 0 {
			most = min(most, limit-seen)
		}
		keys, next, err := l.list(ctx, prefix, cursor, most)
		if err != nil {
			return "", err
		}
		slices.Sort(keys)
		if err := do(slices.Compact(keys)); err != nil {
			return "", err
		}
		seen += len(keys)
		if next == "" || seen == limit {
			return next, nil
		}
		cursor = next
	}
}

func (l *locks) list(ctx context.Context, prefix, cursor string, most int) ([]string, string, error) {
	var keys []string
	var next string
	err := insist(ctx, func(ctx context.Context) (err error) {
		keys, next, err = l.admin.ListPage(ctx, prefix, cursor, most)
		return err
	})
	return keys, next, backendError(err)
}

// abreast is how many keys are looked at at a time.
const abreast = 16

// read looks at keys, and leaves out those that are free by now.
func (l *locks) read(ctx context.Context, keys []string) ([]lock, error) {
	found, errs := make([]lock, len(keys)), make([]error, len(keys))
	var work sync.WaitGroup
	free := make(chan struct{}, abreast)
	for i, key := range keys {
		free <- struct{}{}
		work.Go(func() {
			found[i], errs[i] = l.lookAt(ctx, key)
			<-free
		})
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, backendError(err)
		}
	}
	return slices.DeleteFunc(found, func(k lock) bool { return k.isFree() }), nil
}

// lookAt is one lock. A key that cannot be read for what it is, say one of another
// program that has control characters, does not hide the others.
func (l *locks) lookAt(ctx context.Context, key string) (lock, error) {
	claims, err := l.claims(ctx, key)
	switch {
	case err != nil && driver.ClassOf(err) == driver.Fatal, isUsage(err):
		var e *dlock.Error
		if errors.As(err, &e) {
			err = e.Err // the key is shown anyway
		}
		return lock{Key: key, Holders: []claim{}, Error: err.Error()}, nil
	case err != nil:
		return lock{}, err
	}
	return l.of(key, claims), nil
}

func (l *locks) claims(ctx context.Context, key string) ([]dlock.Claim, error) {
	var claims []dlock.Claim
	err := insist(ctx, func(ctx context.Context) (err error) {
		claims, err = l.admin.Inspect(ctx, key)
		return err
	})
	return claims, err
}

// insist asks again where that may help, so that one reply out of a hundred thousand
// that is lost does not end a list.
func insist(ctx context.Context, ask func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for pause := 50 * time.Millisecond; pause < 500*time.Millisecond; pause *= 2 {
		err = ask(ctx)
		if err == nil || isUsage(err) || driver.ClassOf(err) == driver.Fatal {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

func (l *locks) of(key string, claims []dlock.Claim) lock {
	k := lock{Key: key, Holders: []claim{}, queue: []claim{}}
	for i := range claims {
		c := shown(&claims[i])
		if claims[i].Phase != dlock.PhaseHeld {
			k.queue = append(k.queue, c)
			continue
		}
		k.Holders = append(k.Holders, c)
		k.Mode, k.Limit, k.Token = c.Mode, c.Limit, max(k.Token, c.Token)
	}
	if n := len(k.queue); l.Name != "file" { // whose waiters are known to their own processes only
		k.Waiters = &n
	}
	return k
}

func shown(from *dlock.Claim) claim {
	c := claim{Mode: string(from.Mode), Limit: from.Limit, Token: from.Token, Info: from.Info, Trace: from.Trace, age: from.Age, left: from.Remaining}
	if from.Age > 0 || from.Info != (dlock.Info{}) { // of a claim of another library nothing is known
		age := seconds(from.Age)
		c.Held = &age
		if from.Phase != dlock.PhaseHeld {
			c.Held, c.Waiting = nil, &age
		}
	}
	if from.Remaining > 0 {
		left := seconds(from.Remaining)
		c.Left = &left
	}
	return c
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func (k *lock) isFree() bool { return len(k.Holders) == 0 && len(k.queue) == 0 && k.Error == "" }
