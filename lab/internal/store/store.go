// Package store is what the workers of a trial write to: for each key a counter
// that looks at fencing tokens, and next to it one that does not.
package store

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/ceyewan/genesis/lab/internal/mono"
)

// A Write is one that arrived at At. Sent is when its writer last saw that it had the lock.
type Write struct {
	Sent, At int64
	Key      string
	Attempt  string
	Fence    int64
}

// A LostUpdate is a write to the unfenced counter that had not seen another one, and overwrote it. If
// no sections overlapped, one of the two arrived after its section had ended.
type LostUpdate struct{ Write, Overwritten Write }

// Counts are what became of all writes.
type Counts struct {
	Writes int // that arrived
	// Rejected were refused by the fenced counter because of their token.
	Rejected int
	// FencedLost and UnfencedLost are updates that overwrote one that they had not
	// seen.
	FencedLost, UnfencedLost int
}

// A Store serves workers on a socket until it is closed.
type Store struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	counters map[string]*counters
	accepted []Write
	lost     []LostUpdate
	counts   Counts
}

type counters struct {
	fence            int64 // the greatest seen
	fenced, unfenced int64
	last             Write // to the unfenced one
}

// Listen starts a Store on a unix socket.
func Listen(path string) (*Store, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Store{listener: l, conns: map[net.Conn]bool{}, counters: map[string]*counters{}}
	s.serving.Go(s.accept)
	return s, nil
}

// Close ends all connections and waits for the goroutines that served them.
func (s *Store) Close() error {
	err := s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		err = errors.Join(err, c.Close())
	}
	s.conns = nil
	s.mu.Unlock()
	s.serving.Wait()
	return err
}

// Log returns what the fenced counters accepted, in that order, and the counts.
func (s *Store) Log() ([]Write, Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Write(nil), s.accepted...), s.counts
}

// Lost returns the lost updates of the unfenced counters, in their order.
func (s *Store) Lost() []LostUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lost)
}

func (s *Store) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[conn] = true
		s.mu.Unlock()
		s.serving.Go(func() { s.serve(conn) })
	}
}

func (s *Store) serve(conn net.Conn) {
	defer s.forget(conn)
	in := bufio.NewScanner(conn)
	for in.Scan() {
		if _, err := fmt.Fprintln(conn, s.answer(in.Text())); err != nil {
			return
		}
	}
}

func (s *Store) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[conn] {
		delete(s.conns, conn)
		_ = conn.Close()
	}
}

// answer carries out one line: "read KEY FENCE" or "write KEY FENCE ATTEMPT SENT FENCED
// UNFENCED", the last two being what the writer has read.
func (s *Store) answer(line string) string {
	var verb, key, attempt string
	var fence, sent, fenced, unfenced int64
	n, _ := fmt.Sscan(line, &verb, &key, &fence, &attempt, &sent, &fenced, &unfenced)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counters[key]
	if c == nil {
		c = &counters{}
		s.counters[key] = c
	}
	switch {
	case verb == "read" && n == 3:
		c.fence = max(c.fence, fence) // from here on whoever came before is refused
		return fmt.Sprint(c.fenced, " ", c.unfenced)
	case verb == "write" && n == 7:
		s.write(c, Write{Sent: sent, At: mono.Now(), Key: key, Attempt: attempt, Fence: fence}, fenced, unfenced)
		return "0 0"
	}
	return "bad request"
}

func (s *Store) write(c *counters, w Write, fenced, unfenced int64) {
	s.counts.Writes++
	if c.unfenced != unfenced {
		s.counts.UnfencedLost++
		s.lost = append(s.lost, LostUpdate{Write: w, Overwritten: c.last})
	}
	c.unfenced, c.last = unfenced+1, w
	if w.Fence < c.fence {
		s.counts.Rejected++
		return
	}
	if c.fenced != fenced {
		s.counts.FencedLost++
	}
	c.fence, c.fenced = w.Fence, fenced+1
	s.accepted = append(s.accepted, w)
}
