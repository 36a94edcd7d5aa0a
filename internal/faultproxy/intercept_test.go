package faultproxy_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
)

func TestInterceptOneCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := redis.NewScript(`return redis.call("INCR", KEYS[1])`)
	check(t, script.Load(t.Context(), r.direct).Err())
	r.proxy.Intercept(faultproxy.Next(1, faultproxy.DropReply, "EVALSHA"))
	check(t, r.through.Ping(t.Context()).Err())
	if err := script.EvalSha(t.Context(), r.through, []string{"count"}).Err(); err == nil || timedOut(err) {
		t.Errorf("the reply was not dropped: %v", err)
	}
	if got := get(t, r.direct, "count"); got != "1" {
		t.Errorf("count is %q", got)
	}
	if got, err := script.EvalSha(t.Context(), r.through, []string{"count"}).Int(); got != 2 || err != nil {
		t.Errorf("the next one: %d, %v", got, err)
	}
}

func TestInterceptError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var evals atomic.Int64
	r.proxy.Intercept(func(cmd []string) faultproxy.Action {
		switch cmd[0] {
		case "EVAL":
			evals.Add(1)
		case "EVALSHA":
			return faultproxy.ReplyError("NOSCRIPT No matching script.")
		}
		return faultproxy.Forward
	})
	got, err := redis.NewScript(`return 7`).Run(t.Context(), r.through, nil).Int()
	if got != 7 || err != nil || evals.Load() != 1 {
		t.Errorf("%d, %v, after %d EVAL", got, err, evals.Load())
	}
}

// pipelined is a pipeline with a rule for its second command.
func pipelined(t *testing.T, r *rig) (first, second, third *redis.IntCmd) {
	_, _ = r.through.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		first = p.Incr(t.Context(), "count")
		second = p.IncrBy(t.Context(), "count", 10)
		third = p.Incr(t.Context(), "count")
		return nil
	})
	return first, second, third
}

func TestInterceptInsidePipeline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Intercept(faultproxy.Every(faultproxy.ReplyError("BUSY later"), "INCRBY"))
	first, second, third := pipelined(t, r)
	if first.Val() != 1 || !redis.HasErrorPrefix(second.Err(), "BUSY") || third.Val() != 2 {
		t.Errorf("an error in its place: %v, %v, %v", first, second, third)
	}
	r.proxy.Intercept(faultproxy.Every(faultproxy.Twice, "INCRBY"))
	first, second, third = pipelined(t, r)
	if first.Val() != 3 || second.Val() != 13 || third.Val() != 24 {
		t.Errorf("carried out twice: %v, %v, %v", first, second, third)
	}
	r.proxy.Intercept(faultproxy.Every(faultproxy.DropReply, "INCRBY"))
	first, second, third = pipelined(t, r)
	if first.Val() != 25 || second.Err() == nil || third.Err() == nil {
		t.Errorf("the reply dropped: %v, %v, %v", first, second, third)
	}
	// The third may have been cut off.
	if got := get(t, r.direct, "count"); got != "35" && got != "36" {
		t.Errorf("count is %s", got)
	}
}

func TestInterceptSwallow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Intercept(faultproxy.Every(faultproxy.Swallow, "INCR"))
	if err := r.through.Incr(within(t, soon), "count").Err(); !timedOut(err) {
		t.Errorf("a swallowed command: %v", err)
	}
	if got := get(t, r.direct, "count"); got != "" {
		t.Errorf("count is %s", got)
	}
	r.proxy.Heal()
	check(t, r.through.Incr(t.Context(), "count").Err())
}

func TestInterceptRuleMayUseTheProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Intercept(func(cmd []string) faultproxy.Action {
		if cmd[0] == "INCR" {
			r.proxy.Heal()
			r.proxy.Cut()
		}
		return faultproxy.Forward
	})
	if err := r.through.Incr(t.Context(), "count").Err(); err == nil || timedOut(err) {
		t.Errorf("the cut was not felt: %v", err)
	}
}

// subscribe subscribes in three ways through the proxy and waits until all
// are confirmed; protocol is 2 or 3.
func subscribe(t *testing.T, r *rig, protocol int) *redis.PubSub {
	t.Helper()
	sub := variant(t, r.server, r.proxy.Addr(), protocol).Subscribe(t.Context(), "channel")
	t.Cleanup(func() { sub.Close() })
	check(t, sub.PSubscribe(t.Context(), "pat*"))
	check(t, sub.SSubscribe(t.Context(), "shard"))
	for range 3 {
		if _, err := sub.ReceiveTimeout(t.Context(), patience); err != nil {
			t.Fatal(err)
		}
	}
	return sub
}

func publish(t *testing.T, r *rig, text string) {
	t.Helper()
	check(t, r.direct.Publish(t.Context(), "channel", text).Err())
	check(t, r.direct.Publish(t.Context(), "pattern", text).Err())
	check(t, r.direct.SPublish(t.Context(), "shard", text).Err())
}

func receive(t *testing.T, sub *redis.PubSub) []string {
	t.Helper()
	var got []string
	for range 3 {
		msg, err := sub.ReceiveTimeout(t.Context(), patience)
		check(t, err)
		got = append(got, msg.(*redis.Message).Channel+" "+msg.(*redis.Message).Payload)
	}
	return got
}

func TestProxyDropsMessages(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		r := newRig(t)
		sub := subscribe(t, r, protocol)
		connections := r.proxy.Connections()
		publish(t, r, "one")
		if got := receive(t, sub); !slices.Equal(got, []string{"channel one", "pattern one", "shard one"}) {
			t.Errorf("RESP%d: received %q", protocol, got)
		}
		r.proxy.DropMessages(true)
		publish(t, r, "two")
		// The answer comes after the messages that were published before the question.
		check(t, sub.Ping(t.Context()))
		if msg, err := sub.ReceiveTimeout(t.Context(), patience); err != nil || !strings.HasPrefix(msg.(interface{ String() string }).String(), "Pong") {
			t.Errorf("RESP%d: received %v, %v", protocol, msg, err)
		}
		r.proxy.DropMessages(false)
		publish(t, r, "three")
		if got := receive(t, sub); !slices.Equal(got, []string{"channel three", "pattern three", "shard three"}) {
			t.Errorf("RESP%d: received %q", protocol, got)
		}
		if r.proxy.Connections() != connections {
			t.Errorf("RESP%d: the subscriber had to connect again", protocol)
		}
	}
}

// command returns a command as a client sends it.
func command(words ...string) string {
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	return text
}

// kinds are the types of replies that DEBUG PROTOCOL returns.
var kinds = []string{
	"string", "integer", "double", "null", "array", "set", "map", "attrib", "push", "verbatim", "true", "false", "bignum",
}

// Replies of every type pass unchanged, and the proxy's own answers after each are in the right
// place, so it knows which reply belongs to which command.
func TestProxyMatchesEveryType(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Intercept(func(cmd []string) faultproxy.Action {
		if cmd[0] == "ECHO" && cmd[1] != "the end" {
			return faultproxy.ReplyError(cmd[1])
		}
		return faultproxy.Forward
	})
	want, got := transcript(t, r.server.Addr()), transcript(t, r.proxy.Addr())
	for _, kind := range kinds {
		echo := "after " + kind
		want = strings.Replace(want, fmt.Sprintf("$%d\r\n%s\r\n", len(echo), echo), "-"+echo+"\r\n", 1)
	}
	// HELLO reports the number of the connection, which differs.
	_, want, _ = strings.Cut(want, "mode")
	_, got, _ = strings.Cut(got, "mode")
	if got != want || !strings.Contains(got, "|1\r\n") || !strings.Contains(got, ">2\r\n") {
		t.Errorf("direct %q\nthrough the proxy %q", want, got)
	}
}

// transcript returns what the server answers to commands that produce a reply of each type, with an
// ECHO after each, all in one pipeline.
func transcript(t *testing.T, addr string) string {
	t.Helper()
	commands := command("HELLO", "3")
	for _, kind := range kinds {
		commands += command("DEBUG", "PROTOCOL", kind) + command("ECHO", "after "+kind)
	}
	conn, in := dial(t, addr)
	send(t, conn, commands+command("DEBUG", "ERROR", "ERR of mine")+command("ECHO", "the end"))
	var text strings.Builder
	for !strings.HasSuffix(text.String(), "the end\r\n") {
		line, err := in.ReadString('\n')
		text.WriteString(line)
		check(t, err)
	}
	return text.String()
}

func TestProxyPassesMonitor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, command("MONITOR"))
	expect(t, in, "+OK\r\n")
	check(t, r.direct.Incr(t.Context(), "count").Err())
	testenv.Eventually(t, patience, "the command is shown", func() bool {
		line, err := in.ReadString('\n')
		check(t, err)
		return strings.Contains(line, `"count"`)
	})
}

// A replica receives a snapshot and then a stream, which are not replies.
func TestProxyPassesReplication(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	check(t, r.direct.Set(t.Context(), "early", "value", 0).Err())
	replica := clientOf(t, testenv.Redis(t))
	host, port, err := net.SplitHostPort(r.proxy.Addr())
	check(t, err)
	check(t, replica.Do(t.Context(), "REPLICAOF", host, port).Err())
	for _, key := range []string{"early", "late"} {
		check(t, r.direct.Set(t.Context(), key, "value", 0).Err())
		testenv.Eventually(t, patience, key+" is replicated", func() bool {
			return replica.Get(t.Context(), key).Val() == "value"
		})
	}
}

// greeter is a server of another protocol: it speaks first and answers lines.
func greeter(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "hello\n")
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return listener.Addr().String()
}

func TestProxyPassesOtherProtocols(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, greeter(t))
	conn, in := dial(t, proxy.Addr())
	expect(t, in, "hello\n")
	proxy.Duplicate(1)
	send(t, conn, "again\n")
	expect(t, in, "again\nagain\n")
	half, halfIn := dial(t, proxy.Addr())
	expect(t, halfIn, "hello\n")
	send(t, half, "last words\n")
	check(t, half.(*net.TCPConn).CloseWrite())
	expect(t, halfIn, "last words\n")
	proxy.DropReplies(1)
	send(t, conn, "lost\n")
	if b, err := in.ReadByte(); err == nil || timedOut(err) {
		t.Errorf("read %q, %v", b, err)
	}
}
