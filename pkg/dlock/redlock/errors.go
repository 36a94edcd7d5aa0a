package redlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// What can go wrong beyond the errors of package driver. Test with errors.Is.
var (
	// ErrNodes: the servers or the options cannot be used for locks.
	ErrNodes = errors.New("redlock: unfit")
	// ErrNoQuorum: fewer than a majority of the servers have answered. The error also
	// wraps why, for instance dlock.ErrUnavailable, dlock.ErrDenied or dlock.ErrNotReady.
	ErrNoQuorum = errors.New("too few redis servers answer")
	// ErrTooLate: a majority has answered, and nothing of the lease was left by then.
	ErrTooLate = errors.New("the servers took longer than the lease")
	// ErrOutOfMemory: servers are at maxmemory. Releases and renewals still work;
	// nothing new is stored. It is a dlock.ErrNotReady.
	ErrOutOfMemory = redisnode.ErrOutOfMemory
	// ErrNotALock: the key holds data of another kind, which is left alone.
	ErrNotALock = redisnode.ErrNotALock
	// ErrReply: the answer was not to what we had asked.
	ErrReply = redisnode.ErrReply
)

// fit returns the clients if locks can be kept on them.
func fit(clients []redis.UniversalClient) ([]*redis.Client, error) {
	if n := len(clients); n < 3 || n%2 == 0 {
		return nil, fmt.Errorf("%w: %d servers, but an odd number of at least 3 is needed; an even one survives no more failures than one less", ErrNodes, n)
	}
	var servers []*redis.Client
	seen := map[string]int{}
	for i, c := range clients {
		client, ok := c.(*redis.Client)
		if _, isCluster := c.(*redis.ClusterClient); isCluster {
			return nil, fmt.Errorf("%w: %w: client %d is one of a cluster, whose nodes are not independent; use package redislock for it", ErrNodes, driver.ErrUnsupported, i)
		}
		if c == nil || (ok && client == nil) {
			return nil, fmt.Errorf("%w: client %d is nil", ErrNodes, i)
		}
		if !ok {
			return nil, fmt.Errorf("%w: %w: client %d is a %T, not one of a single server", ErrNodes, driver.ErrUnsupported, i, c)
		}
		where := client.Options().Network + " " + client.Options().Addr
		if j, again := seen[where]; again {
			return nil, fmt.Errorf("%w: clients %d and %d are of the same server %s", ErrNodes, j, i, client.Options().Addr)
		}
		seen[where] = i
		servers = append(servers, client)
	}
	return servers, nil
}

func (s *settings) validate() error {
	switch {
	case s.bad != nil:
		return s.bad
	case !(s.drift >= 0 && s.drift <= 0.5): // so NaN is refused
		return fmt.Errorf("%w: WithDrift(%v) is not between 0 and 0.5", ErrNodes, s.drift)
	case s.nodeTimeout < 0 || (s.nodeTimeout > 0 && s.nodeTimeout < time.Millisecond) || s.nodeTimeout > longestMost:
		return fmt.Errorf("%w: WithNodeTimeout(%v) is not between 1ms and %v", ErrNodes, s.nodeTimeout, longestMost)
	}
	return nil
}

// tally collects how servers failed to answer.
type tally struct {
	failed    int
	fatal     int
	ambiguous bool
	first     error
}

func (t *tally) add(err error) {
	t.failed++
	switch driver.ClassOf(err) {
	case driver.Ambiguous:
		t.ambiguous = true
	case driver.Fatal:
		t.fatal++
	case driver.Transient:
	}
	if t.first == nil || errors.Is(t.first, errSilent) || driver.ClassOf(err) == driver.Fatal {
		t.first = err
	}
}

// isUnsent reports whether an error of noQuorum says that no server has been sent anything
// but what it has refused.
func isUnsent(err error) bool {
	return driver.ClassOf(err) == driver.Transient && errors.Is(err, driver.ErrUnavailable)
}

// noQuorum is the error of a call that too few servers have answered. It is fatal
// only if no majority can be had from the others, and says that nothing was done only
// if that is so on every server; stored tells whether the claim is on some.
func (t *tally) noQuorum(of, majority int, stored bool) error {
	class, cause := driver.Transient, t.first
	if t.ambiguous || stored {
		class, cause = driver.Ambiguous, hide.From(t.first, driver.ErrUnavailable) // which would say that nothing is stored
	}
	if of-t.fatal < majority {
		class = driver.Fatal
	}
	return driver.Classify(fmt.Errorf("%w: %d of %d did not: %w", ErrNoQuorum, t.failed, of, cause), class)
}
