package faultproxy_test

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// A rig is a server with a proxy in front of it, a client through the proxy whose connection is
// open, and a client that bypasses it.
type rig struct {
	server  *servers.Redis
	proxy   *faultproxy.Proxy
	through *redis.Client
	direct  *redis.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	r := &rig{server, proxy, variant(t, server, proxy.Addr(), 3), clientOf(t, server)}
	check(t, r.through.Ping(t.Context()).Err())
	return r
}

// variant returns a client with at most one connection, so that a new one means that the old one
// was lost; protocol is 2 or 3.
func variant(t *testing.T, r *servers.Redis, addr string, protocol int) *redis.Client {
	model := r.ClientAt(addr)
	defer model.Close()
	options := *model.Options()
	options.PoolSize, options.Protocol, options.MaxRetries = 1, protocol, -1
	client := redis.NewClient(&options)
	t.Cleanup(func() { client.Close() })
	return client
}

// dial opens a connection that the test itself uses.
func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	check(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn, bufio.NewReader(conn)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	check(t, err)
}

func expect(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(in, got)
	if string(got) != want {
		t.Fatalf("read %q, %v, want %q", got[:n], err, want)
	}
}

// incrBehind runs INCR in the background, and returns once the proxy has seen it.
func (r *rig) incrBehind(t *testing.T, key string) <-chan error {
	t.Helper()
	before, result := r.proxy.Requests(), make(chan error, 1)
	go func() { result <- r.through.Incr(t.Context(), key).Err() }()
	testenv.Eventually(t, patience, "the proxy has seen the command", func() bool { return r.proxy.Requests() > before })
	return result
}

const ping = "*1\r\n$4\r\nPING\r\n"

func TestProxyIsTransparent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	big := strings.Repeat("x", 3<<20) // more than the proxy holds
	check(t, r.through.Set(t.Context(), "big", big, 0).Err())
	if get(t, r.through, "big") != big {
		t.Error("a big value came back changed")
	}
	increment := func(n int) {
		_, err := r.through.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for range n {
				p.Incr(t.Context(), "count")
			}
			return nil
		})
		check(t, err)
	}
	increment(1) // the client opens a connection for pipelines
	requests := r.proxy.Requests()
	increment(1000)
	if got := get(t, r.direct, "count"); got != "1001" {
		t.Errorf("count is %s", got)
	}
	if got := r.proxy.Requests() - requests; got != 1000 {
		t.Errorf("%d requests counted", got)
	}
	if r.proxy.BytesUp() < int64(len(big)) || r.proxy.BytesDown() < int64(len(big)) {
		t.Errorf("%d bytes up, %d down", r.proxy.BytesUp(), r.proxy.BytesDown())
	}
	if r.proxy.Connections() != 2 || r.proxy.Open() != 2 {
		t.Errorf("%d connections, %d open", r.proxy.Connections(), r.proxy.Open())
	}
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const up, down = 100 * time.Millisecond, 150 * time.Millisecond
	r.proxy.Delay(up, down)
	begin := time.Now()
	_, err := r.through.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for range 100 {
			p.Ping(t.Context())
		}
		return nil
	})
	check(t, err)
	const most = 100 * (up + down) * 6 / 10 // not each by itself
	if took := time.Since(begin); took < up+down || took > most && !testenv.Stalled(t, begin, most) {
		t.Errorf("100 commands at once took %v", took)
	}
}

func TestProxyDelayIsLiftedForWhatIsOnTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Delay(time.Hour, 0)
	result := r.incrBehind(t, "count")
	r.proxy.Heal()
	check(t, <-result)
}

func TestProxyCut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, ping)
	expect(t, in, "+PONG\r\n")
	r.proxy.Cut()
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection lives")
	}
	testenv.Eventually(t, patience, "no connection is open", func() bool { return r.proxy.Open() == 0 })
	testenv.Eventually(t, patience, "the client connects again", func() bool {
		return r.through.Ping(t.Context()).Err() == nil
	})
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, ping)
	expect(t, in, "+PONG\r\n")
	r.proxy.BlackHole(true)
	send(t, conn, ping)
	fresh, freshIn := dial(t, r.proxy.Addr())
	send(t, fresh, ping)
	if err := r.through.Incr(within(t, soon), "count").Err(); !timedOut(err) {
		t.Errorf("through the hole came %v", err)
	}
	check(t, conn.SetReadDeadline(time.Now().Add(soon)))
	if _, err := in.ReadByte(); !timedOut(err) {
		t.Errorf("the connection is not silent but %v", err)
	}
	check(t, conn.SetReadDeadline(time.Now().Add(patience)))
	r.proxy.Heal()
	expect(t, in, "+PONG\r\n")
	expect(t, freshIn, "+PONG\r\n")
}

func TestProxyOneWayBlackHoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.BlackHoleUp(true)
	if err := r.through.Incr(within(t, soon), "up").Err(); !timedOut(err) {
		t.Errorf("up: %v", err)
	}
	if got := get(t, r.direct, "up"); got != "" {
		t.Errorf("up: the command was carried out: %s", got)
	}
	r.proxy.Heal()
	check(t, r.through.Ping(t.Context()).Err())
	r.proxy.BlackHoleDown(true)
	result := r.incrBehind(t, "down")
	testenv.Eventually(t, patience, "the command is carried out", func() bool {
		return get(t, r.direct, "down") == "1"
	})
	select {
	case err := <-result:
		if !timedOut(err) { // the client has a limit of its own
			t.Errorf("down: %v", err)
		}
	case <-time.After(testenv.UnderStress(5*soon, 20*soon)): // a late reply would be lost with its client
		check(t, r.through.Close())
		if err := <-result; err == nil {
			t.Error("down: the reply came through")
		}
	}
}

func TestProxyDropsReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.DropReplies(1)
	if err := r.through.Incr(t.Context(), "count").Err(); err == nil || timedOut(err) {
		t.Errorf("the reply was not dropped: %v", err)
	}
	if got := get(t, r.direct, "count"); got != "1" {
		t.Errorf("the command was not carried out: count is %q", got)
	}
	if got, err := r.through.Incr(t.Context(), "count").Result(); got != 2 || err != nil {
		t.Errorf("the next one: %d, %v", got, err)
	}
}

func TestProxyDuplicates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Duplicate(2)
	for want := range int64(3) {
		// 1 of 1 and 2, 3 of 3 and 4, and 5.
		if got, err := r.through.Incr(t.Context(), "count").Result(); got != 2*want+1 || err != nil {
			t.Errorf("got %d, %v, want %d", got, err, 2*want+1)
		}
	}
	if r.proxy.Connections() != 1 {
		t.Error("the client had to connect again")
	}
}

// abandon sends a command that is held back until its client has closed.
func (r *rig) abandon(t *testing.T) {
	t.Helper()
	r.proxy.Delay(time.Hour, 0)
	result := r.incrBehind(t, "count")
	check(t, r.through.Close())
	if err := <-result; err == nil {
		t.Error("the delayed command was answered")
	}
	if got := get(t, r.direct, "count"); got != "" {
		t.Errorf("count is %s before its time", got)
	}
}

func TestProxyDeliversAfterClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.DeliverAfterClose(true)
	r.abandon(t)
	if r.proxy.Open() != 1 {
		t.Error("the connection has ended")
	}
	r.proxy.Delay(0, 0)
	testenv.Eventually(t, patience, "the command is carried out", func() bool {
		return get(t, r.direct, "count") == "1"
	})
	testenv.Eventually(t, patience, "the connection has ended", func() bool { return r.proxy.Open() == 0 })
}

func TestProxyForgetsAfterClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.abandon(t)
	testenv.Eventually(t, patience, "the connection has ended", func() bool { return r.proxy.Open() == 0 })
	r.proxy.Heal()
	if got := get(t, r.direct, "count"); got != "" {
		t.Errorf("a command that was given up was carried out: %s", got)
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Refuse(true)
	_, in := dial(t, r.proxy.Addr())
	if _, err := in.ReadByte(); err == nil || timedOut(err) {
		t.Errorf("a new connection: %v", err)
	}
	check(t, r.through.Ping(t.Context()).Err()) // the open one
	r.proxy.Refuse(false)
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, ping)
	expect(t, in, "+PONG\r\n")
}

func TestProxyRetarget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := testenv.Redis(t)
	check(t, r.direct.Set(t.Context(), "who", "first", 0).Err())
	check(t, clientOf(t, other).Set(t.Context(), "who", "second", 0).Err())
	r.proxy.Retarget(other.Addr())
	if got := get(t, r.through, "who"); got != "first" {
		t.Errorf("the open connection leads to %q", got)
	}
	r.proxy.Cut()
	testenv.Eventually(t, patience, "the second server answers", func() bool {
		return r.through.Get(t.Context(), "who").Val() == "second"
	})
}

func TestProxyShowsDeadServers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, ping)
	expect(t, in, "+PONG\r\n")
	check(t, r.server.Kill())
	if _, err := in.ReadByte(); err == nil || timedOut(err) {
		t.Errorf("an open connection: %v", err)
	}
	_, in = dial(t, r.proxy.Addr())
	if _, err := in.ReadByte(); err == nil || timedOut(err) {
		t.Errorf("a new connection: %v", err)
	}
	r.proxy.BlackHole(true)
	conn, in = dial(t, r.proxy.Addr())
	check(t, conn.SetReadDeadline(time.Now().Add(soon)))
	if _, err := in.ReadByte(); !timedOut(err) {
		t.Errorf("a new connection into the hole: %v", err)
	}
	r.proxy.Heal()
	check(t, r.server.Restart(t.Context(), false))
	testenv.Eventually(t, patience, "the server answers again", func() bool {
		return r.through.Ping(t.Context()).Err() == nil
	})
}

func TestProxyClosesInTheMiddleOfFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.BlackHole(true)
	conn, _ := dial(t, r.proxy.Addr())
	send(t, conn, ping)
	result := r.incrBehind(t, "count")
	check(t, r.proxy.Close())
	check(t, r.proxy.Close())
	if err := <-result; err == nil || timedOut(err) {
		t.Errorf("the client sees %v", err)
	}
}

func TestProxyClosesOnAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	check(t, r.direct.Set(t.Context(), "big", strings.Repeat("x", 32<<20), 0).Err())
	conn, in := dial(t, r.proxy.Addr())
	send(t, conn, command("GET", "big"))
	expect(t, in, "$")
	check(t, r.proxy.Close())
}
