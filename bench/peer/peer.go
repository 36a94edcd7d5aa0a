// Package peer has the ways to lock that the benchmark compares, each in a file of its
// own: our backends, other libraries, and floors, which do the least that a lock could
// do and show what is possible at all.
package peer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// A Peer is one way to lock.
type Peer interface {
	// Info describes the peer, for the report.
	Info() Info
	// Open returns a client with connections of its own.
	Open(ctx context.Context, env *Env) (Client, error)
}

// A Client takes locks. It is safe for concurrent use.
type Client interface {
	// Lock waits until key is ours or ctx ends. A peer that stops waiting earlier, of
	// its own accord, answers ErrGaveUp.
	Lock(ctx context.Context, key string) (Lock, error)
	Close() error
}

// A Lock is a key that is held.
type Lock interface {
	Unlock(ctx context.Context) error
}

// ErrGaveUp: the peer has waited as long as it does by default, and returned without
// the lock.
var ErrGaveUp = errors.New("gave up waiting")

// Info is what readers of the figures need to know about a peer.
type Info struct {
	Name    string `json:"name"`    // stable: reports and flags use it
	Title   string `json:"title"`   // for people
	Backend string `json:"backend"` // redis, redlock, etcd, file or tcp
	Version string `json:"version"` // of the library that does the work
	Setup   string `json:"setup"`   // how it is configured
	Changed string `json:"changed"` // what differs from its README, and why; "" is nothing
	Ours    bool   `json:"ours"`
	Floor   bool   `json:"floor"`  // not a lock for use
	Waits   bool   `json:"waits"`  // can be asked for a busy key
	Renews  bool   `json:"renews"` // keeps a lock that is held, by itself
}

// An Env is where the servers are.
type Env struct {
	Redis   string        `json:"redis"`   // address
	Redlock []string      `json:"redlock"` // addresses of five
	Etcd    string        `json:"etcd"`    // address
	Echo    string        `json:"echo"`    // address
	Dir     string        `json:"dir"`     // of lock files
	TTL     time.Duration `json:"ttl"`     // 0: what the peer has for a default
}

// ttl is the lease that was asked for, or the peer's own.
func (e *Env) ttl(own time.Duration) time.Duration {
	if e.TTL > 0 {
		return e.TTL
	}
	return own
}

// All are the peers, ours first and floors last.
func All() []Peer {
	return []Peer{
		ourRedis{},
		ourBatch{},
		ourAsync{},
		ourEtcd{},
		ourRedlock{},
		ourFile{},
		redsyncPeer{},
		redislockPeer{},
		rueidislockPeer{},
		mutexShared{},
		mutexOwn{},
		poller{},
		token{},
		rawGoRedis{},
		rawRueidis{},
		rawEtcd{},
		ping{},
		echo{},
	}
}

// Find returns the peer of this name.
func Find(name string) (Peer, error) {
	for _, p := range All() {
		if p.Info().Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no peer %q", name)
}

// version of a module that this program is built with.
func version(module string) string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, d := range b.Deps {
			if d.Path == module {
				return module + " " + d.Version
			}
		}
	}
	return module
}

// pause waits, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// A key that a floor takes for itself alone has this value: as long as the values of
// the libraries.
const ownValue = "0123456789abcdef0123456789abcdef"
