// Package simredis puts a real Redis under a simulation. Connections are simulated, the
// time of scripts is virtual, and the server gets one call at a time, in an order that the
// seed decides.
package simredis

import (
	"bufio"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/sim"
)

//go:embed clock.lua
var clock string

// A Server is a real server for the length of one simulation. It is made and used inside
// the bubble of its synctest: while the server works, virtual time stands still.
type Server struct {
	// Called is called with the keys of every script that a link has brought. May be nil.
	Called func(keys string)

	sim  *sim.Simulation
	addr string
	conn sim.Group

	mu          sync.Mutex // one call at a time
	own         *wire
	ahead       time.Duration     // of the Clients' clock
	scripts     map[string]string // hash of a script: that of the script with the clock
	subscribers []*conn           // connections that have subscribed, in the order in which they did
	counts      map[string]int
	err         error // the first that is not the simulation's
}

// New empties the server at addr and prepares it.
func New(s *sim.Simulation, addr string) (*Server, error) {
	own, err := dial(addr)
	if err != nil {
		return nil, err
	}
	if _, err := own.exchange(command("FLUSHALL")); err != nil {
		return nil, err
	}
	return &Server{sim: s, addr: addr, own: own, scripts: map[string]string{}, counts: map[string]int{}}, nil
}

// Close waits for the end of all connections, which their clients have closed before. Its
// error is one of the real server, which makes the simulation void.
func (s *Server) Close() error {
	s.conn.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.close()
	return s.err
}

// Advance moves the server's clock ahead.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// A wire is a real connection.
type wire struct {
	net.Conn
	in *bufio.Reader
}

func dial(addr string) (*wire, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{c, bufio.NewReader(c)}, nil
}

// close resets the connection: many thousands of them would use up all ports otherwise.
func (w *wire) close() {
	if tcp, ok := w.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = w.Close()
}

func (w *wire) exchange(cmd []byte) ([]byte, error) {
	if _, err := w.Write(cmd); err != nil {
		return nil, err
	}
	return readValue(w.in)
}

// noScript is the server's answer to a hash that it does not know.
var noScript = []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n")

// untimed commands are carried out as they are.
var untimed = map[string]bool{
	"HELLO": true, "CLIENT": true, "PING": true, "AUTH": true, "SELECT": true, "INFO": true, "CONFIG": true,
	"PUBSUB": true, "SUBSCRIBE": true, "UNSUBSCRIBE": true, "PUBLISH": true, "QUIT": true, "ECHO": true, "WAIT": true,
}

// timed returns a command that runs at the simulation's time, or an answer that needs no
// server. It runs under mu.
func (s *Server) timed(words []string) (cmd, answer []byte, err error) {
	name := strings.ToUpper(words[0])
	now := strconv.FormatInt(time.Now().Add(s.ahead).UnixMicro(), 10)
	switch {
	case untimed[name]:
		return command(words...), nil, nil
	case name == "EVALSHA":
		hash, known := s.scripts[words[1]]
		if !known {
			return nil, noScript, nil
		}
		return command(append(append([]string{"EVALSHA", hash}, words[2:]...), now)...), nil, nil
	case name == "EVAL":
		hash, err := s.load(words[1])
		if err != nil {
			return nil, nil, err
		}
		return command(append(append([]string{"EVALSHA", hash}, words[2:]...), now)...), nil, nil
	default:
		hash, err := s.load("return redis.call(unpack(ARGV))")
		if err != nil {
			return nil, nil, err
		}
		return command(append(append([]string{"EVALSHA", hash, "0"}, words...), now)...), nil, nil
	}
}

// load makes the server know a script with the clock before it, and returns its hash.
func (s *Server) load(script string) (string, error) {
	sum := sha1.Sum([]byte(script)) //nolint:gosec // the server's way to name scripts
	name := hex.EncodeToString(sum[:])
	if hash, known := s.scripts[name]; known {
		return hash, nil
	}
	reply, err := s.own.exchange(command("SCRIPT", "LOAD", clock+script))
	if err != nil {
		return "", err
	}
	text := strings.Split(string(reply), "\r\n")
	if reply[0] != '$' || len(text) < 2 {
		return "", fmt.Errorf("SCRIPT LOAD: %s", reply)
	}
	s.scripts[name] = text[1]
	return text[1], nil
}

// execute carries out a command of a connection, and gives subscribers what it published.
func (s *Server) execute(c *conn, words []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd, answer, err := s.timed(words)
	switch {
	case c.denied(words):
		answer = noRights
	case err == nil && cmd != nil:
		answer, err = c.call(cmd, words)
	}
	if err != nil {
		if s.err == nil {
			s.err = fmt.Errorf("%s: %w", strings.Join(words, " "), err)
		}
		return
	}
	if answer != nil {
		c.answer(answer)
	}
	for _, c := range s.subscribers {
		if err := c.collect(); err != nil && s.err == nil {
			s.err = fmt.Errorf("a subscriber: %w", err)
		}
	}
}
