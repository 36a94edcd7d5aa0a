package watch

import (
	"sync"

	"github.com/ceyewan/genesis/lab/internal/mono"
)

// A quorum puts together what several servers that know nothing of each other say: a lock
// is over when a majority of them no longer has it. Of a server that cannot be heard it is
// not known what it has; it counts for the holder.
type quorum struct {
	end  func(Death)
	undo func(Death)

	mu    sync.Mutex
	nodes []*node
	held  map[string]*majority // by key
}

// A node is what is known of one server.
type node struct {
	heard  bool             // the watcher listens to it
	lives  int              // how often it began to; a server begins empty
	tokens map[string]int64 // of the locks that it has; 0: none, -1: asked, and not answered yet
}

// A majority is the lock that a majority of servers had last.
type majority struct {
	token int64
	over  *Death // nil: they still have it
}

// regained is how soon a lock that seemed over may turn out not to be: what two servers say
// arrives in any order.
const regained = int64(200_000_000)

func newQuorum(servers int, end, undo func(Death)) *quorum {
	q := &quorum{end: end, undo: undo, held: map[string]*majority{}}
	for range servers {
		q.nodes = append(q.nodes, &node{tokens: map[string]int64{}})
	}
	return q
}

// hear says that a server can be heard from now on, or no longer. It returns the keys that
// are to be asked for.
func (q *quorum) hear(at int, on bool) (keys []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.nodes[at]
	n.heard = on
	clear(n.tokens)
	if !on {
		return nil
	}
	n.lives++
	for key, m := range q.held {
		if m.over == nil {
			n.tokens[key] = -1
			keys = append(keys, key)
		}
	}
	return keys
}

// set says which token a server has for a key, 0 for none and -1 for one that is being asked
// for, and why.
func (q *quorum) set(at int, key string, token int64, cause string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nodes[at].tokens[key] = token
	q.judge(key, token, cause)
}

func (q *quorum) judge(key string, token int64, cause string) {
	m := q.held[key]
	if token > 0 && (m == nil || m.token != token) && q.count(key, token, false) > len(q.nodes)/2 {
		q.held[key] = &majority{token: token}
		return
	}
	if m == nil {
		return
	}
	has := q.count(key, m.token, true) > len(q.nodes)/2
	switch {
	case has && m.over != nil && mono.Now()-m.over.At < regained:
		q.undo(*m.over)
		m.over = nil
	case !has && m.over == nil:
		m.over = &Death{At: mono.Now(), Key: key, Fence: m.token, Cause: cause}
		q.end(*m.over)
	}
}

// count is how many servers have a token, or may have it.
func (q *quorum) count(key string, token int64, perhaps bool) (n int) {
	for _, one := range q.nodes {
		got, known := one.tokens[key]
		known = one.heard && got != -1 && (known || one.lives == 1)
		if (known && got == token) || (perhaps && !known) {
			n++
		}
	}
	return n
}
