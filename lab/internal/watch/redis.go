package watch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/worker"
)

const channel = "__keyspace@0__:"

// A sink hears what happens to locks at one server.
type sink interface {
	// begin is called when listening begins, and returns the locks whose tokens are to be
	// asked for.
	begin() (ask []string)
	changed(key string)          // to what is being asked for
	has(key string, token int64) // 0: none, or one that has not won
	ended(key string, of hold, cause string)
	interrupted() // nothing is heard until it begins again
}

// redis follows the keyspace events of one server, through its restarts.
func (w *Watcher) redis(ctx context.Context, addr string, to sink) {
	for ctx.Err() == nil {
		if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			l := &subscription{conn: conn, in: bufio.NewReader(conn), to: to, locks: map[string]*lock{}}
			l.follow()
			stop()
			_ = conn.Close()
			to.interrupted()
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A subscription asks for values on the connection on which it hears of changes, as
// RESP3 allows: there, answers and messages come in the order in which the server
// carried things out, so that a value is known to be that of the last change heard.
type subscription struct {
	conn  net.Conn
	in    *bufio.Reader
	to    sink
	locks map[string]*lock
	asked []question // whose answers are still to come
}

// A lock is what is known of one key. Each time it is set is a new generation.
type lock struct {
	generation int
	hold
	shared []int64 // the tokens of readers or permits, in place of a hold
}

// A hold is what the server stores of a holder.
type hold struct {
	fence  int64 // 0: not known
	tokens int64 // that it has for handing the lock over, from fence on
}

type question struct {
	key        string
	generation int
	shared     bool
}

func (l *subscription) follow() {
	if l.send("HELLO", "3") != nil || l.send("PSUBSCRIBE", channel+worker.Prefix+"*") != nil {
		return
	}
	if first, err := l.read(); err != nil || first == nil { // what HELLO says
		return
	}
	if subscribed, err := l.read(); err != nil || subscribed == nil {
		return
	}
	for _, key := range l.to.begin() {
		l.ask(key, l.of(key))
	}
	for {
		got, err := l.read()
		if err != nil {
			return
		}
		switch v := got.(type) {
		case push:
			if len(v) == 4 && v[0] == "pmessage" {
				l.change(strings.TrimPrefix(fmt.Sprint(v[2]), channel), fmt.Sprint(v[3]))
			}
		default:
			l.answered(v)
		}
	}
}

// change takes in an event. Keys next to the locks have a byte that no lock has.
func (l *subscription) change(key, what string) {
	if strings.Contains(key, "\x01") {
		return
	}
	one := l.of(key)
	switch what {
	case "set", "restore":
		*one = lock{generation: one.generation + 1}
		l.to.changed(key)
		l.ask(key, one)
	case "zadd", "zrem": // who of the readers or permits came or went is not said
		one.generation++
		l.askHolders(key, one)
	case "del", "expired", "evicted":
		l.to.ended(key, one.hold, what)
		for _, fence := range one.shared {
			l.to.ended(key, hold{fence: fence}, what)
		}
		*one = lock{generation: one.generation + 1}
	}
}

func (l *subscription) of(key string) *lock {
	if l.locks[key] == nil {
		l.locks[key] = &lock{}
	}
	return l.locks[key]
}

func (l *subscription) ask(key string, one *lock) {
	l.asked = append(l.asked, question{key: key, generation: one.generation})
	_ = l.send("GET", key)
}

// askHolders asks for the records of readers or permits, which are in a hash next to the lock. Keys that
// these use have no hash tag.
func (l *subscription) askHolders(key string, one *lock) {
	l.asked = append(l.asked, question{key: key, generation: one.generation, shared: true})
	_ = l.send("HVALS", "{"+key+"}\x01j")
}

// answered takes in the value "<id> <token> <tokens> …" of the oldest question, or the records of holders,
// "<token> …".
func (l *subscription) answered(value any) {
	if len(l.asked) == 0 {
		return
	}
	q := l.asked[0]
	l.asked = l.asked[1:]
	one := l.locks[q.key]
	if one.generation != q.generation {
		return
	}
	if q.shared {
		l.compare(q.key, one, value)
		return
	}
	text, _ := value.(string)
	part := strings.SplitN(text, " ", 4)
	if len(part) >= 2 {
		one.fence, _ = strconv.ParseInt(part[1], 10, 64)
	}
	if len(part) >= 3 {
		one.tokens, _ = strconv.ParseInt(part[2], 10, 64)
	}
	l.to.has(q.key, one.fence)
}

// compare finds the readers or permits that have gone since the last answer. A replica of a cluster does not
// answer.
func (l *subscription) compare(key string, one *lock, value any) {
	records, ok := value.([]any)
	if !ok {
		return
	}
	var now []int64
	for _, r := range records {
		first, _, _ := strings.Cut(fmt.Sprint(r), " ")
		if fence, err := strconv.ParseInt(first, 10, 64); err == nil {
			now = append(now, fence)
		}
	}
	for _, fence := range one.shared {
		if !slices.Contains(now, fence) {
			l.to.ended(key, hold{fence: fence}, "zrem")
		}
	}
	one.shared = now
}

func (l *subscription) send(words ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	_, err := io.WriteString(l.conn, b.String())
	return err
}

// push is what a server says unasked.
type push []any

// read takes one value of RESP3.
func (l *subscription) read() (any, error) {
	line, err := l.in.ReadString('\n')
	if err != nil || len(line) < 3 {
		return nil, fmt.Errorf("watcher: %w", err)
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '$', '=':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		body := make([]byte, n+2)
		_, err = io.ReadFull(l.in, body)
		return string(body[:n]), err
	case '*', '~', '>', '%':
		n, err := strconv.Atoi(rest)
		if kind == '%' {
			n *= 2
		}
		all := make(push, 0, max(n, 0))
		for range n {
			v, err := l.read()
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		if kind != '>' {
			return []any(all), err
		}
		return all, err
	}
	return rest, nil
}
