package testenv

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
)

// A Monitor records everything that a Redis server carries out, in order.
type Monitor struct {
	ask  net.Conn // for marks
	in   *bufio.Reader
	mu   sync.Mutex
	seen []Command
}

// A Command is a command that a server has carried out.
type Command struct {
	At   time.Duration // by the server's clock
	Lua  bool          // a script has called it
	Args []string
}

// marks distinguishes the marks of all monitors.
var marks atomic.Int64

// MonitorRedis starts MONITOR, which ends with the test.
func MonitorRedis(tb testing.TB, server *servers.Redis) *Monitor {
	tb.Helper()
	m := &Monitor{}
	conn := dialRedis(tb, server)
	m.ask = dialRedis(tb, server)
	m.in = bufio.NewReader(m.ask)
	_, err := fmt.Fprint(conn, "MONITOR\r\n")
	if err != nil {
		tb.Fatal(err)
	}
	in, done := bufio.NewReaderSize(conn, 1<<16), make(chan struct{})
	line, err := in.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "+OK") {
		tb.Fatalf("MONITOR: %q, %v", line, err)
	}
	go func() {
		defer close(done)
		m.read(in)
	}()
	tb.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return m
}

func dialRedis(tb testing.TB, server *servers.Redis) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (m *Monitor) read(in *bufio.Reader) {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		m.mu.Lock()
		m.seen = append(m.seen, parseMonitored(line))
		m.mu.Unlock()
	}
}

// parseMonitored reads `+1700000000.123456 [0 lua] "SET" "k" "v"`.
func parseMonitored(line string) (c Command) {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimRight(line, "\r\n"), "+"), " ")
	sec, usec, _ := strings.Cut(stamp, ".")
	a, _ := strconv.ParseInt(sec, 10, 64)
	b, _ := strconv.ParseInt(usec, 10, 64)
	c.At = time.Duration(a)*time.Second + time.Duration(b)*time.Microsecond
	from, rest, _ := strings.Cut(rest, "] ")
	c.Lua = strings.HasSuffix(from, " lua")
	for rest != "" {
		word, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		text, _ := strconv.Unquote(word)
		c.Args = append(c.Args, text)
		rest = strings.TrimPrefix(rest[len(word):], " ")
	}
	return c
}

// Commands returns the commands that were carried out until now.
func (m *Monitor) Commands(tb testing.TB) []Command {
	tb.Helper()
	mark := "mark" + strconv.FormatInt(marks.Add(1), 10)
	_, err := fmt.Fprintf(m.ask, "ECHO %s\r\n", mark)
	if err != nil {
		tb.Fatal(err)
	}
	for range 2 { // $n, and the word
		_, err = m.in.ReadString('\n')
		if err != nil {
			tb.Fatal(err)
		}
	}
	var seen []Command
	Eventually(tb, 20*time.Second, "the monitor catches up", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := len(m.seen) - 1; i >= 0; i-- {
			if args := m.seen[i].Args; len(args) == 2 && args[1] == mark {
				seen = slices.Clone(m.seen[:i])
				return true
			}
		}
		return false
	})
	return seen
}
