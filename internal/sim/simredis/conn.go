package simredis

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/sim"
)

// A Dialer makes connections over a link of the simulation's network. Direct ones have no
// faults, and delays below a microsecond.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// Direct is past the network.
func (s *Server) Direct() Dialer {
	return func(context.Context, string, string) (net.Conn, error) { return s.open("", "direct") }
}

// Over is a link.
func (s *Server) Over(link string) Dialer {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		n := s.count(link)
		r := s.sim.Draw(link, "dial") // not of n: a client may dial several at one instant
		delay := time.Duration(r.Int64N(int64(5 * time.Millisecond)))
		if s.sim.Cut(link) {
			if r.IntN(2) == 0 {
				delay = time.Hour // nothing answers
			}
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return nil, errors.New("simulated: connection refused")
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return s.open(link, fmt.Sprint(link, " conn ", n))
	}
}

func (s *Server) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
	return s.counts[what]
}

// A conn is a simulated connection, and the real one that represents it. Its stream
// keeps its order in both directions, as TCP does; messages that were sent may arrive
// after the client has closed it.
type conn struct {
	server *Server
	link   string // "": direct
	name   string
	peer   net.Conn // the server's side of the simulated connection
	wire   *wire
	out    chan outgoing
	broken chan struct{} // closed when nothing passes any more
	once   sync.Once

	// Under the server's mu.
	subscribed bool
	closed     bool
	mute       bool     // an answer was lost, and with it everything after it
	fate       sim.Fate // of the command that is being carried out
	replyAt    time.Time
	heard      [][]byte // pushes that were delivered

	// The reader's.
	arriveAt time.Time
}

type outgoing struct {
	at   time.Time
	data []byte
}

func (s *Server) open(link, name string) (net.Conn, error) {
	w, err := dial(s.addr)
	if err != nil {
		return nil, err
	}
	client, peer := net.Pipe()
	c := &conn{
		server: s, link: link, name: name, peer: peer, wire: w, out: make(chan outgoing, 4096),
		broken: make(chan struct{}),
	}
	var writer sync.WaitGroup
	writer.Go(c.write)
	s.conn.Go(func() {
		c.read()
		writer.Wait()
		c.end()
	})
	return client, nil
}

func (c *conn) breakDown() { c.once.Do(func() { close(c.broken) }) }

// read takes commands from the client until it closes the connection. The server gets
// each after its delay, in order.
func (c *conn) read() {
	defer c.breakDown()
	in := bufio.NewReader(c.peer)
	before := make(chan struct{})
	close(before)
	lost := false
	for {
		raw, err := readValue(in)
		if err != nil {
			break
		}
		words := parseStrings(raw)
		if len(words) == 0 || lost {
			continue // a command that never arrives
		}
		if c.link != "" {
			c.server.sim.Attempts(strings.Join(words, " "))
		}
		f, r := c.next(words)
		if f.LostThere {
			lost = true
			if r.IntN(2) == 0 { // the client is told; else nothing is ever answered
				c.server.sim.Go(func() { pause(f.There); c.breakDown(); _ = c.peer.Close() })
			}
			continue
		}
		before = c.carry(words, f, r, before)
	}
	<-before
}

// next draws the fate of a command. A script is known by its keys and its first argument,
// which names the claim: which of its connections a client chooses does not matter.
func (c *conn) next(words []string) (sim.Fate, *rand.Rand) {
	s := c.server.sim
	if c.link == "" { // no two things happen at one instant, so that they have an order
		r := s.Draw(words)
		return sim.Fate{There: time.Duration(1 + r.IntN(1000)), Back: time.Duration(1 + r.IntN(1000))}, r
	}
	if !isScript(words) { // setting up a connection is slow at most
		f := s.Fate(c.link, strings.ToUpper(words[0]), 0)
		lost := s.Cut(c.link)
		return sim.Fate{There: f.There, Back: f.Back, LostThere: lost}, s.Draw(c.link, "lost")
	}
	keys, _ := strconv.Atoi(words[2])
	what := fmt.Sprint(c.link, " ", len(words), words[min(3, len(words)-1)], words[min(3+keys, len(words)-1)])
	n := c.server.count(what)
	return s.Fate(c.link, what, n), s.Draw(what, n, "tcp")
}

func isScript(words []string) bool {
	return len(words) > 3 && strings.HasPrefix(strings.ToUpper(words[0]), "EVAL")
}

// carry takes a command to the server after the one before it.
func (c *conn) carry(words []string, f sim.Fate, r *rand.Rand, before <-chan struct{}) chan struct{} {
	s, done := c.server, make(chan struct{})
	at := time.Now().Add(f.There)
	if at.Before(c.arriveAt) {
		at = c.arriveAt.Add(1)
	}
	c.arriveAt = at
	c.tracef("%s sends %s", c.name, brief(words))
	s.sim.Go(func() {
		defer close(done)
		pause(time.Until(at))
		<-before
		c.arrive(words, f, true)
		if f.Again > 0 {
			s.sim.Go(func() { pause(f.Again); c.arrive(words, f, false) })
		}
		if f.LostBack && r.IntN(2) == 0 { // and not only silent
			c.breakDown()
			_ = c.peer.Close()
		}
	})
	return done
}

// arrive has the server carry out a command. Its answer may be lost.
func (c *conn) arrive(words []string, f sim.Fate, first bool) {
	s := c.server
	if !first || c.isClosed() { // the answer has nowhere to go
		again, err := s.open("", c.name+" late")
		if err != nil {
			return
		}
		defer again.Close()
		s.sim.Tracef("%s: %s arrives late or again", c.name, brief(words))
		if _, err := again.Write(command(words...)); err == nil {
			_, _ = readValue(bufio.NewReader(again))
		}
		return
	}
	s.mu.Lock()
	c.fate = f
	s.mu.Unlock()
	c.tracef("%s: %s arrives", c.name, brief(words))
	s.execute(c, words)
	if s.Called != nil && c.link != "" && isScript(words) {
		keys, _ := strconv.Atoi(words[2])
		s.Called(strings.Join(words[3:min(3+keys, len(words))], " "))
	}
}

func (c *conn) isClosed() bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.closed
}

// call is the real call. It runs under the server's mu, as the rest does.
func (c *conn) call(cmd []byte, words []string) ([]byte, error) {
	name := strings.ToUpper(words[0])
	if name == "SUBSCRIBE" && !c.subscribed {
		c.subscribed = true
		c.server.subscribers = append(c.server.subscribers, c)
	}
	if !c.subscribed {
		return c.wire.exchange(cmd)
	}
	_, err := c.wire.Write(cmd) // the answer is collected
	return nil, err
}

const mark = "sim-mark"

// collect takes what the server has sent to a subscriber: everything before the answer
// to a call of ours.
func (c *conn) collect() error {
	if _, err := c.wire.Write(command("PING", mark)); err != nil {
		return err
	}
	for {
		value, err := readValue(c.wire.in)
		if err != nil {
			return err
		}
		if bytes.HasSuffix(value, []byte("\r\n"+mark+"\r\n")) {
			return nil
		}
		if isMessage(value) {
			c.push(value)
		} else {
			c.answer(value)
		}
	}
}

func isMessage(value []byte) bool {
	words := parseStrings(value)
	return len(words) == 3 && words[0] == "message"
}

// push delivers a message: late, twice, not at all, or after it an old one once more.
func (c *conn) push(value []byte) {
	f := c.server.sim.Fate(c.link, string(value), 0)
	r := c.server.sim.Draw(c.link, string(value), "old")
	if f.LostPush {
		c.server.sim.Tracef("%s: %q is lost", c.name, value)
		return
	}
	c.send(value, f.There)
	if f.Repeats {
		c.send(value, f.Again)
		if len(c.heard) > 0 {
			c.send(c.heard[r.IntN(len(c.heard))], f.Again)
		}
		c.send(wrong(value, r), f.Again)
	}
	c.heard = append(c.heard, value)
}

// wrong makes a message that is not true, of those that may do no harm: only the server
// can tell of a grant.
func wrong(value []byte, r *rand.Rand) []byte {
	words := parseStrings(value)
	part := strings.Split(words[2], "\x01")
	part[0] = []string{"gone", "free", "held", "", "nonsense"}[r.IntN(5)]
	switch {
	case part[0] == "held":
		part = part[:2]
	case r.IntN(2) == 0 && len(part) == 4:
		part[3] = fmt.Sprint(r.IntN(1000))
	}
	words[2] = strings.Join(part, "\x01")
	return encode(value[0], words)
}

// answer returns an answer, unless it is lost.
func (c *conn) answer(value []byte) {
	f := c.fate
	c.fate = sim.Fate{}
	if f.LostBack {
		c.mute = true
		return
	}
	c.send(value, f.Back)
}

func (c *conn) send(value []byte, after time.Duration) {
	if c.mute {
		return
	}
	at := time.Now().Add(after)
	if at.Before(c.replyAt) {
		at = c.replyAt
	}
	c.replyAt = at
	select {
	case c.out <- outgoing{at, value}:
	default: // a client that reads nothing for so long has a broken connection
		c.breakDown()
	}
}

// write gives the client what was sent to it, each at its time.
func (c *conn) write() {
	for {
		var o outgoing
		select {
		case o = <-c.out:
		case <-c.broken:
			return
		}
		if wait := time.Until(o.at); wait > 0 {
			select {
			case <-time.After(wait):
			case <-c.broken:
				return
			}
		}
		c.tracef("%s receives %q", c.name, o.data)
		if _, err := c.peer.Write(o.data); err != nil {
			return
		}
	}
}

// end closes the real connection.
func (c *conn) end() {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	c.closed = true
	s.subscribers = slices.DeleteFunc(s.subscribers, func(o *conn) bool { return o == c })
	_ = c.peer.Close()
	c.wire.close()
}

// tracef is for links: what passes directly is not of the simulation.
func (c *conn) tracef(format string, args ...any) {
	if c.link != "" {
		c.server.sim.Tracef(format, args...)
	}
}

// brief is a command without what is long.
func brief(words []string) string {
	if isScript(words) {
		return fmt.Sprintf("script %.6s on %s with %.80q", words[1], words[3], words[4:])
	}
	return strings.Join(words, " ")
}

func pause(d time.Duration) { <-time.After(d) }
