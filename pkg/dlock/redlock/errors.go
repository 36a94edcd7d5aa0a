package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors in addition to those of package driver. Test with errors.Is.
var (
	// ErrInvalidServers: locks cannot be kept on these servers. It is a dlock.ErrInvalidConfig.
	ErrInvalidServers = xerrors.NewOf(xerrors.ErrInvalidConfig, "invalid_servers", "redlock: invalid servers")
	// ErrNoQuorum: fewer than a majority of the servers have answered. The error also
	// wraps why, dlock.ErrUnavailable, dlock.ErrDenied or dlock.ErrNotReady, and has the code
	// of that.
	ErrNoQuorum = xerrors.New("no_quorum", "too few redis servers answer")
	// ErrLeaseExpired: a majority has answered, but the lease had ended by then.
	// It is a dlock.ErrNotReady.
	ErrLeaseExpired = xerrors.NewOf(driver.ErrNotReady, "lease_expired", "the servers took longer than the lease")
	// ErrOutOfMemory: servers are at maxmemory. Releases and renewals still work;
	// nothing new is stored. It is a dlock.ErrNotReady.
	ErrOutOfMemory = redisnode.ErrOutOfMemory
	// ErrNotALock: the key holds data of another kind, which is left unchanged.
	ErrNotALock = redisnode.ErrNotALock
	// ErrUnexpectedReply: the answer does not match the request. It is a dlock.ErrNotReady.
	ErrUnexpectedReply = redisnode.ErrUnexpectedReply
)

// fit returns the clients if they can be used for locks.
func fit(clients []redis.UniversalClient) ([]*redis.Client, error) {
	if n := len(clients); n < 3 || n%2 == 0 {
		return nil, fmt.Errorf("%w: %d servers, but an odd number of at least 3 is needed; an even one survives no more failures than one less", ErrInvalidServers, n)
	}
	var servers []*redis.Client
	seen := map[string]int{}
	for i, c := range clients {
		client, ok := c.(*redis.Client)
		if redisnode.IsNil(c) {
			return nil, fmt.Errorf("%w: %w: client %d is nil", driver.ErrConnectorNil, ErrInvalidServers, i)
		}
		if _, isCluster := c.(*redis.ClusterClient); isCluster {
			return nil, fmt.Errorf("%w: %w: client %d is one of a cluster, whose nodes are not independent; use package redislock for it", ErrInvalidServers, driver.ErrUnsupported, i)
		}
		if !ok {
			return nil, fmt.Errorf("%w: %w: client %d is a %T, not one of a single server", ErrInvalidServers, driver.ErrUnsupported, i, c)
		}
		where := client.Options().Network + " " + client.Options().Addr
		if j, again := seen[where]; again {
			return nil, fmt.Errorf("%w: clients %d and %d are of the same server %s", ErrInvalidServers, j, i, client.Options().Addr)
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
		return fmt.Errorf("%w: redlock: WithDrift(%v) is not between 0 and 0.5", xerrors.ErrInvalidConfig, s.drift)
	case s.nodeTimeout < 0 || (s.nodeTimeout > 0 && s.nodeTimeout < time.Millisecond) || s.nodeTimeout > maxNodeTimeout:
		return fmt.Errorf("%w: redlock: WithNodeTimeout(%v) is not between 1ms and %v", xerrors.ErrInvalidConfig, s.nodeTimeout, maxNodeTimeout)
	}
	return nil
}

// tally collects how servers failed to answer.
type tally struct {
	failed    int
	fatal     int
	permanent int // of the fatal ones
	ambiguous bool
	refused   bool // by a server that may have executed part of the call
	causes    []cause
}

// A cause is why servers failed to answer.
type cause struct {
	err      error // of the first of them
	severity severity
	servers  int // without those that are not called because they are silent
}

// A severity says how long a cause lasts.
type severity uint8

const (
	passing   severity = iota
	fatal              // a retry does not help
	permanent          // not even a wait does
)

func severityOf(err error) severity {
	switch {
	case driver.ClassOf(err) != driver.Fatal:
		return passing
	case isPermanent(err):
		return permanent
	}
	return fatal
}

func (t *tally) add(err error) {
	t.failed++
	err = cmp.Or(err, ErrUnexpectedReply) // the server says what no script of ours does
	s := severityOf(err)
	if s >= fatal {
		t.fatal++
		t.refused = t.refused || !errors.Is(err, driver.ErrUnavailable)
	}
	if s == permanent {
		t.permanent++
	}
	t.ambiguous = t.ambiguous || driver.ClassOf(err) == driver.Ambiguous
	i := slices.IndexFunc(t.causes, func(c cause) bool { return c.severity == s && xerrors.CodeOf(c.err) == xerrors.CodeOf(err) })
	if i < 0 {
		i, t.causes = len(t.causes), append(t.causes, cause{err: err, severity: s})
	}
	if errors.Is(err, errSilent) {
		return // others may know why
	}
	if t.causes[i].servers == 0 {
		t.causes[i].err = err
	}
	t.causes[i].servers++
}

// main returns the cause that prevents a majority, or nil. A cause that lasts prevents one only if the servers with such causes alone
// do: otherwise it is enough that the others answer again.
func (t *tally) main(of, majority int) *cause {
	decisive := passing
	switch {
	case of-t.permanent < majority:
		decisive = permanent
	case of-t.fatal < majority:
		decisive = fatal
	}
	var most *cause
	for i := range t.causes {
		if c := &t.causes[i]; c.severity == decisive && (most == nil || c.servers > most.servers) {
			most = c
		}
	}
	return most
}

// quorumError returns an error with the main cause. If there is none, unheard is why other servers were not heard; nil if it is not known.
// The other causes are in its text.
func (t *tally) quorumError(of, majority int, unheard error) *quorumError {
	q := &quorumError{cause: cmp.Or(unheard, driver.ErrNotReady), permanent: of-t.permanent < majority, refused: t.refused}
	named := t.main(of, majority)
	if named == nil && unheard == nil && len(t.causes) > 0 {
		named = &t.causes[0]
	}
	if named != nil {
		q.cause = named.err
	}
	for i := range t.causes {
		if c := &t.causes[i]; c != named {
			q.others = append(q.others, c.err.Error())
		}
	}
	return q
}

// isPermanent reports whether a fatal error lasts until somebody acts. A denial may be over in a moment, as when a password
// is changed.
func isPermanent(err error) bool {
	return errors.Is(err, ErrNotALock) || errors.Is(err, driver.ErrClosed) || errors.Is(err, redis.ErrClosed)
}

// endsWait reports whether an error of noQuorum says that waiting is in vain.
func endsWait(err error) bool {
	var q *quorumError
	return errors.As(err, &q) && q.permanent
}

// isUnsent reports whether an error of noQuorum says that every server was either sent nothing or
// has refused the whole call.
func isUnsent(err error) bool {
	var q *quorumError
	return errors.As(err, &q) && !q.refused && driver.ClassOf(err) == driver.Transient && errors.Is(err, driver.ErrUnavailable)
}

// noQuorum returns the error of a call that too few servers have answered. It is fatal only if the
// other servers cannot form a majority. It says that nothing was done only if that is true on every
// server; stored reports whether the claim is on some of them.
func (t *tally) noQuorum(of, majority int, stored bool) error {
	q, class := t.quorumError(of, majority, nil), driver.Transient
	q.detail = fmt.Sprintf("%d of %d did not: ", t.failed, of)
	if t.ambiguous || stored {
		class, q.cause = driver.Ambiguous, hide.From(q.cause, driver.ErrUnavailable) // which would say that nothing is stored
	}
	if of-t.fatal < majority {
		class = driver.Fatal
	}
	return driver.Classify(q, class)
}

// A quorumError is an ErrNoQuorum with its cause, of which it has the kind and the code.
type quorumError struct {
	detail    string
	cause     error
	others    []string // causes on other servers
	permanent bool     // permanent causes alone prevent a majority
	refused   bool     // see tally
}

// errNotEnough is for calls that do not know what the other servers said.
var errNotEnough error = &quorumError{cause: driver.ErrNotReady}

func (e *quorumError) Error() string {
	others := ""
	if len(e.others) > 0 {
		others = "; others: " + strings.Join(e.others, "; ")
	}
	return fmt.Sprintf("%v: %s%v%s", ErrNoQuorum, e.detail, e.cause, others)
}

func (e *quorumError) Unwrap() []error { return []error{e.cause, ErrNoQuorum} }
