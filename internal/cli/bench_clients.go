package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// throwAway is a name that nothing else uses.
func throwAway() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails; see its documentation
	return "dlock-bench-" + hex.EncodeToString(raw[:])
}

// atOnce is how many clients connect, or close, at a time.
const atOnce = 8

// assemble makes a client with connections of its own for each that will fight.
func (c *benchmark) assemble() error {
	n := slices.Max(c.plan.Clients)
	all, errs := make([]*session, n), make([]error, n)
	forEach(n, func(i int) {
		if c.cmd.Context().Err() == nil {
			all[i], errs[i] = c.connect(c.cmd, c.logger())
		}
	})
	for _, s := range all {
		if s != nil {
			c.sessions = append(c.sessions, s)
			c.plan.Lockers = append(c.plan.Lockers, s.client)
		}
	}
	for _, err := range errs {
		if err != nil {
			return err // one says enough: all go to the same place
		}
	}
	c.plan.Sent = c.count()
	return context.Cause(c.cmd.Context())
}

func forEach(n int, f func(i int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			f(i)
			<-turns
		})
	}
	wg.Wait()
}

// count is how many commands all clients have sent; nil if their backend cannot tell.
func (c *benchmark) count() func() int64 {
	var counts []func() int64
	for _, s := range c.sessions {
		if s.Count == nil {
			return nil
		}
		counts = append(counts, s.Count())
	}
	return func() (sum int64) {
		for _, sent := range counts {
			sum += sent()
		}
		return sum
	}
}

// disband closes all clients, and leaves nothing of a key that was made for this.
func (c *benchmark) disband(random bool) {
	forEach(len(c.sessions), func(i int) {
		if i > 0 {
			_ = c.sessions[i].close() // every lock was given back before, or its release has failed
		}
	})
	if len(c.sessions) == 0 {
		return
	}
	last := c.sessions[0]
	_ = last.client.Close()
	if random && last.Forget != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = last.Forget(ctx, last.Config.Prefix+c.plan.Key) // little stays, and nothing waits for it
	}
	_ = last.close()
}

// forgetFile removes the file of a lock.
func forgetFile(dir string) func(context.Context, string) error {
	return func(_ context.Context, name string) error { return os.Remove(filepath.Join(dir, filelock.Name(name))) }
}
