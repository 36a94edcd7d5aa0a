package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// several locks all keys together, works and unlocks. What counts from when each of them was granted is not asked for.
func (u *User) several(c *dlock.Client) {
	r := u.Several
	opts, ttl, purpose := []dlock.LockOption(nil), time.Duration(1+r.IntN(10))*time.Second, fmt.Sprintf("%s/%d", u.Name, u.step)
	opts = append(opts, dlock.WithTTL(ttl), dlock.WithInfo(dlock.Info{Purpose: purpose}))
	hasWait, wait := r.IntN(2) == 0, time.Duration(r.Int64N(int64(8*time.Second)))
	if r.IntN(2) == 0 || !hasWait {
		wait = 0
	}
	if hasWait {
		opts = append(opts, dlock.WithWait(wait))
	}
	async := u.Async && r.IntN(3) == 0
	if async {
		opts = append(opts, dlock.WithAsyncUnlock())
	}
	asks := func(key string) *Request {
		return &Request{
			client: c, verb: verbAll, User: u.Name, Key: key, Purpose: purpose, TTL: ttl, Keeps: true, Together: true,
			HasWait: hasWait, Wait: wait, Async: async,
		}
	}
	first, second := asks(u.Key(true)), asks(u.Key(false))
	defer u.patience(first)()
	second.Patience, second.Asked = first.Patience, first.Asked
	context.AfterFunc(second.Patience, func() { second.ended.Store(int64(u.Observer.Now())) })
	u.Observer.Asks(second)
	both := []*Request{first, second}
	all, err := c.AcquireAll(first.Patience, []string{second.Key, first.Key}, opts...)
	if err != nil {
		u.refusedOne(both, err)
		return
	}
	var holds []*Hold
	for _, q := range both {
		holds = append(holds, u.enterTogether(all, q))
	}
	u.stay(all.Context(), u.upTo(ttl))
	u.extendAll(all, holds)
	for _, h := range holds {
		u.Observer.Leaves(h)
	}
	err = all.Unlock(first.Patience)
	for _, h := range holds {
		u.Observer.Unlocked(h, errorOf(err, h.Key))
	}
}

// refusedOne reports the error of a call for the key that the error names.
func (u *User) refusedOne(all []*Request, err error) {
	var of *dlock.Error
	if !errors.As(err, &of) {
		u.failf("refused", "%s was refused several keys with an error that names none: %v", u.Name, err)
	}
	for _, q := range all {
		if of != nil && of.Key == q.Key {
			u.Observer.Refused(q, err)
		} else {
			u.Withdraws(q)
		}
	}
}

func (u *User) enterTogether(all *dlock.Guards, q *Request) *Hold {
	h := &Hold{
		Request: q, Client: fmt.Sprintf("%p", q.client), Token: all.Token(q.Key), Context: all.Context(), guard: all, own: all.Context(), entered: u.Observer.Now(),
	}
	context.AfterFunc(h.own, func() { h.endedAt.Store(int64(u.Observer.Now())) })
	u.Observer.Enters(h)
	return h
}

// errorOf returns the part of a joined error that names a key.
func errorOf(err error, key string) error {
	joined, ok := err.(interface{ Unwrap() []error }) // as errors.Join returns it
	if !ok {
		return err
	}
	for _, one := range joined.Unwrap() {
		var of *dlock.Error
		if errors.As(one, &of) && of.Key == key {
			return one
		}
	}
	return nil
}

// withdraws records that a call has given up a key because it did not get another one. It is not counted: its call was
// refused once.
func (s *Simulation) withdraws(q *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, q)
	one := s.counts[q.way()]
	one.Asked--
	s.counts[q.way()] = one
	q.returned = s.Now()
}
