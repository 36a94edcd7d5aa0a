package connector_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/loopback"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})                                                       // it reports every fault that the tests inject
	connector.AwaitAlerts(testenv.UnderStress(5*time.Second, 200*time.Millisecond)) // a machine may stand still meanwhile
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A conn is any connector.
type conn interface {
	Connect(context.Context) error
	HealthCheck(context.Context) error
	Close() error
}

const (
	short    = 400 * time.Millisecond // a ConnectTimeout that is meant to pass
	long     = time.Minute            // one that is not, on any machine
	atOnce   = time.Second            // for an answer that needs no waiting
	handful  = 3                      // connections that one Connect may make
	patience = time.Minute            // for what must happen
)

// overrun is how far a call may exceed its timeout here: on a busy machine, by half of a timeout
// that is not meant to pass.
var overrun = testenv.UnderStress(long/2, 300*time.Millisecond)

// overTimeout is the same for a ConnectTimeout that is meant to pass: the default is five seconds.
var overTimeout = testenv.UnderStress(4*time.Second, 300*time.Millisecond)

// reconnects is how often gRPC may have connected again by itself since then: its pauses begin at 200 ms less a fifth. Nothing else
// does.
func reconnects(since time.Time) int { return int(time.Since(since) / (160 * time.Millisecond)) }

func newRedis(t *testing.T, cfg connector.RedisConfig, opts ...connector.Option) *connector.Redis {
	t.Helper()
	c, err := connector.NewRedis(&cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOnce(t, c) })
	return c
}

func newEtcd(t *testing.T, cfg connector.EtcdConfig, opts ...connector.Option) *connector.Etcd {
	t.Helper()
	c, err := connector.NewEtcd(&cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOnce(t, c) })
	return c
}

func closeOnce(t *testing.T, c conn) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func mustConnect(t *testing.T, c conn) {
	t.Helper()
	if err := errors.Join(c.Connect(t.Context()), c.Connect(t.Context()), c.HealthCheck(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// refused checks that Connect fails in time with this kind of error, and returns it.
func refused(t *testing.T, c conn, kind error, within time.Duration) error {
	t.Helper()
	metronome, began := testenv.StartMetronome(t), time.Now()
	err := c.Connect(t.Context())
	over := overrun
	if errors.Is(kind, connector.ErrTimeout) {
		over = overTimeout
	}
	if took := time.Since(began); took > within+over+testenv.UnderStress(metronome.Lost(began), 0) {
		t.Errorf("took %v, allowed were %v", took, within)
	}
	if !errors.Is(err, kind) || xerrors.CodeOf(err) != xerrors.CodeOf(kind) {
		t.Fatalf("got %v (code %q), want %v", err, xerrors.CodeOf(err), kind)
	}
	if !strings.HasPrefix(err.Error(), "connector: ") {
		t.Errorf("%v", err)
	}
	if err := c.HealthCheck(t.Context()); !errors.Is(err, kind) {
		t.Errorf("health check: got %v, want %v", err, kind)
	}
	return err
}

// lockOnce takes a lock, lets a second claim wait for it, and closes both clients.
func lockOnce(t *testing.T, open func() (*dlock.Client, error)) {
	t.Helper()
	var clients [2]*dlock.Client
	for i := range clients {
		var err error
		if clients[i], err = open(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := clients[i].Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := clients[0].Lock(ctx, "key"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got, err := clients[1].TryLock(ctx, "key")
	for errors.Is(err, dlock.ErrUnknownOutcome) && testenv.Stalled(t, began, time.Second) { // half of what an attempt may take
		began = time.Now()
		got, err = clients[1].TryLock(ctx, "key")
	}
	if got || err != nil {
		t.Fatalf("second lock: %v, %v", got, err)
	}
	waiter := make(chan error, 1)
	go func() { waiter <- clients[1].Lock(ctx, "key") }()
	if err := clients[0].Unlock(ctx, "key"); err != nil {
		t.Fatal(err)
	}
	if err := <-waiter; err != nil {
		t.Fatal(err)
	}
	if err := clients[1].Unlock(ctx, "key"); err != nil {
		t.Fatal(err)
	}
}

// closedFor checks the state after Close.
func closedFor(t *testing.T, c conn) {
	t.Helper()
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{c.Connect(t.Context()), c.HealthCheck(t.Context())} {
		if !errors.Is(err, connector.ErrClosed) || xerrors.CodeOf(err) != "closed" {
			t.Fatalf("after Close: %v", err)
		}
	}
}

// A door accepts connections and closes them at once; it counts them.
type door struct {
	net.Listener
	knocks atomic.Int64
}

func shutDoor(t *testing.T) *door {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.knocks.Add(1)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return d
}

func (d *door) addr() string { return d.Listener.Addr().String() }

// knock connects to a door and waits until the connection is closed: all earlier connections are
// counted then.
func (d *door) knock(t *testing.T) {
	t.Helper()
	c, err := net.Dial("tcp4", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	if err == nil {
		t.Fatal("the door answers")
	}
}

// unused returns an address on which nothing listens until the test ends.
func unused(t *testing.T) string {
	t.Helper()
	port, err := loopback.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	return port.Addr()
}

// halfOpen returns a host that accepts connections and never answers; it counts them.
func halfOpen(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	proxy := testenv.Proxy(t, l.Addr().String())
	proxy.BlackHole(true)
	return proxy
}

// debugLog returns a logger and a function that returns what it has written so far.
func debugLog() (clog.Logger, func() string) {
	var text syncBuffer
	h := slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})
	return clog.FromSlog(slog.New(h)), text.String
}
