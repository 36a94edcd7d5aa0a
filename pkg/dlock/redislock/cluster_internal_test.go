package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

const nodeA, nodeB = "192.0.2.1:7001", "192.0.2.2:7002"

// A silentCluster is a cluster whose slots a test assigns, and to whose masters no connection is made.
type silentCluster struct {
	mu    sync.Mutex
	nodes []string // the slots are distributed among them evenly, in this order
	loads int      // how often the state was fetched
	dial  error    // of connections; nil: they are not made until their call ends
}

func (c *silentCluster) assign(nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = nodes
}

func (c *silentCluster) loaded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loads
}

func (c *silentCluster) slots(context.Context) (all []redis.ClusterSlot, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads++
	for i, addr := range c.nodes {
		all = append(all, redis.ClusterSlot{Start: i * 16384 / len(c.nodes), End: (i+1)*16384/len(c.nodes) - 1, Nodes: []redis.ClusterNode{{Addr: addr}}})
	}
	if all == nil {
		err = errors.New("no node answers")
	}
	return all, err
}

func (c *silentCluster) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	c.mu.Lock()
	err := c.dial
	c.mu.Unlock()
	if err == nil {
		<-ctx.Done()
		err = ctx.Err()
	}
	return nil, err
}

// openCluster returns a driver for a cluster of two masters, of which the first has the lower half of the slots. It needs virtual time.
func openCluster(t *testing.T, opts ...Option) (*redisDriver, *silentCluster) {
	t.Helper()
	c := &silentCluster{nodes: []string{nodeA, nodeB}}
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: c.slots, Dialer: c.connect, ContextTimeoutEnabled: true, MaxRedirects: -1, DialerRetries: 1})
	opened, err := New(client, opts...).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redisDriver)
	d.warned.Do(func() {}) // Check is not answered
	t.Cleanup(func() {
		_ = d.Close()
		_ = client.Close()
		time.Sleep(client.Options().DialTimeout) // go-redis lets dials end in the background
	})
	return d, c
}

// slotsAt makes a driver consider itself subscribed in slots, on a connection to a master.
func slotsAt(t *testing.T, d *redisDriver, addr string, slots ...int) *subscription {
	t.Helper()
	client := d.masterAt(t.Context(), addr)
	if client == nil {
		t.Fatalf("no master %s", addr)
	}
	l := &d.subscriptions
	l.slots, l.conns, l.warned = map[int]*slotSubscription{}, map[string]*subscription{}, map[string]bool{}
	c := &subscription{all: l, addr: addr, client: client, slots: map[int]*slotSubscription{}, connection: redisnode.NewSubscription(d.ctx, client, true, tripTimeout)}
	l.conns[addr] = c
	for _, slot := range slots {
		s := &slotSubscription{slot: slot, channel: slotChannel(slot, d.name), conn: c, confirmed: true, used: time.Now(), attempted: make(chan struct{})}
		c.slots[slot], l.slots[slot] = s, s
		c.connection.Want(s.channel)
	}
	return c
}

// placeOf returns the master at which a slot is subscribed or about to be, or "" if none is known.
func placeOf(d *redisDriver, slot int) string {
	l := &d.subscriptions
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	if s == nil || s.conn == nil || s.conn.slots[slot] != s {
		return ""
	}
	return s.conn.addr
}

// inBubble runs a test of a cluster in virtual time. Its driver is closed before the bubble ends.
func inBubble(t *testing.T, f func(t *testing.T, d *redisDriver, c *silentCluster), opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, c := openCluster(t, opts...)
		f(t, d, c)
	})
}

// Commands that were not executed are sent again: with the full script to the same server in the same way, and to the master that a
// server has named, or that the state of the cluster names. Others are not.
func TestWhatIsSentAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		ctx := t.Context()
		at := d.masterAt(ctx, nodeA)
		errs := []error{
			nil, replyError("NOSCRIPT No matching script"), replyError("MOVED 9000 " + nodeB), replyError("ASK 9000 " + nodeB),
			replyError("READONLY You can't write against a read only replica."), io.EOF, replyError("MOVED 1 192.0.2.3:9"),
			replyError("MOVED 9000 " + nodeB), replyError("OOM no"), replyError("NOSCRIPT No matching script"),
		}
		key := keyIn(8192, 16383) // the state says that the second master has it
		cmds := make([]*command, len(errs))
		for i, err := range errs {
			cmds[i] = releaseScript.Command(ctx, []string{key})
			cmds[i].SetErr(err)
		}
		trips := d.retryTrips(ctx, trip{client: at, asking: true, cmds: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}, cmds)
		var got []string
		for _, next := range trips {
			client, _ := next.client.(*redis.Client)
			got = append(got, fmt.Sprint(client.Options().Addr, " ", next.asking, " ", client.Options().ReadTimeout, " ", next.cmds))
		}
		patient := tripTimeout + 3*time.Second
		want := []string{
			fmt.Sprint(nodeA, " true ", at.Options().ReadTimeout, " [1 9]"),
			fmt.Sprint(nodeB, " false ", patient, " [2 7]"),
			fmt.Sprint(nodeB, " false ", patient, " [4]"), // a master that has become a replica names no other
			fmt.Sprint(nodeB, " true ", patient, " [3]"),
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for i, c := range cmds {
			again := i == 1 || i == 9
			if whole := c.Args()[0] == "eval"; whole != again {
				t.Errorf("command %d is sent in full: %v", i, whole)
			}
			if moved := i >= 2 && i <= 4 || i == 7; (moved || again || i == 0) != (c.Err() == nil) {
				t.Errorf("command %d has the error %v", i, c.Err())
			}
		}
	}, WithMinReplicas(1, 3*time.Second))
}

// keyIn returns a key whose slot is in a range.
func keyIn(from, to int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		if slot := slotOf(key); slot >= from && slot <= to {
			return key
		}
	}
}

// A master is found by either of its addresses, in a state that is fetched anew.
func TestMasterAtAnAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, c *silentCluster) {
		for _, tc := range []struct {
			nodes []string
			addr  string
			want  bool
		}{
			{[]string{nodeA, nodeB}, nodeB, true},
			{[]string{nodeA}, nodeB, false},
			{[]string{nodeB}, nodeB, true},
			{[]string{nodeB}, "", false},
			{[]string{"127.0.0.1:7003"}, "127.0.0.1:7003", true}, // go-redis has another address for it
			{[]string{"127.0.0.1:7003"}, ":7003", true},
		} {
			c.assign(tc.nodes...)
			before := c.loaded()
			got := d.masterAt(t.Context(), tc.addr)
			if (got != nil) != tc.want || got != nil && !strings.HasSuffix(tc.addr, got.Options().Addr) || c.loaded() != before+1 {
				t.Errorf("%+v: %v, with %d loads", tc, got, c.loaded()-before)
			}
		}
	})
}

// A call at a master that has left the cluster may be made again; one of a client that the user has closed may not. Whatever fails, the
// next call finds the new state.
func TestCallAtAMasterThatHasLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, c *silentCluster) {
		for _, dial := range []error{redis.ErrClosed, nil} {
			c.mu.Lock()
			c.dial = dial
			c.mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if _, err := d.cluster.MasterForKey(ctx, "k"); err != nil {
				t.Fatal(err)
			}
			before := c.loaded()
			_, err := d.callReplicated(ctx, "k", releaseScript.Command(ctx, []string{"k"}))
			cancel()
			if driver.ClassOf(err) != driver.Transient || errors.Is(err, redis.ErrClosed) != (dial != nil) {
				t.Errorf("%v: %v, of class %v", dial, err, driver.ClassOf(err))
			}
			time.Sleep(time.Second) // go-redis fetches it in the background
			if n := c.loaded() - before; n != 1 {
				t.Errorf("%v: the state was fetched %d times", dial, n)
			}
		}
	}, WithMinReplicas(1, time.Second))
	d, _ := openScripted(t, always(nil, redis.ErrClosed), WithMinReplicas(1, time.Second))
	if _, err := d.callReplicated(t.Context(), "k", releaseScript.Command(t.Context(), []string{"k"})); driver.ClassOf(err) == driver.Transient {
		t.Errorf("a client that is closed: %v", err)
	}
}

// The answer that another master has a slot moves the subscription there, also if the state of the cluster does not say so yet.
func TestMovedSlot(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
		at   string // where slot 7 is then
	}{
		{replyError("MOVED 7 " + nodeB), true, nodeB},
		{replyError("MOVED 7 192.0.2.3:9"), true, nodeA}, // unknown: the state says where it is
		{replyError("MOVED 8 " + nodeB), true, nodeA},
		{replyError("MOVED x " + nodeB), false, nodeA},
		{replyError("ASK 7 " + nodeB), false, nodeA},
		{io.EOF, false, nodeA},
	} {
		inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
			c := slotsAt(t, d, nodeA, 7)
			if got := c.moved(tc.err); got != tc.want {
				t.Errorf("%v: %v", tc.err, got)
			}
			if tc.at == nodeB && (placeOf(d, 7) != "" || d.subscriptions.isConfirmed(7) || c.connection.IsWanted(slotChannel(7, d.name))) {
				t.Error("it still has its old connection")
			}
			time.Sleep(20 * time.Millisecond)
			if got := placeOf(d, 7); got != tc.at {
				t.Errorf("%v: it is at %q", tc.err, got)
			}
		})
	}
}

// Two masters that redirect to each other while a slot moves are asked less and less often, up to once a second.
func TestSlotThatMovesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		c := slotsAt(t, d, nodeA, 7)
		s := c.slots[7]
		for _, pause := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
			began := time.Now()
			s.conn.replace(7, nodeB)
			for placeOf(d, 7) == "" {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took.Truncate(10*time.Millisecond) != pause*time.Millisecond {
				t.Errorf("it is asked for again after %v, want %d ms", took, pause)
			}
		}
		other := &subscription{all: &d.subscriptions, slots: map[int]*slotSubscription{7: s}}
		if other.replace(7, nodeA); placeOf(d, 7) != nodeB {
			t.Error("a connection that it has left has moved it")
		}
	})
}

// The answer that a slot has no master is about the channel that was requested first: its claims need not wait, and it is asked for at
// its next master. Other errors break the connection.
func TestUnservedSlot(t *testing.T) {
	for _, tc := range []struct {
		err       error
		requested bool
		want      bool
	}{
		{replyError("CLUSTERDOWN Hash slot not served"), true, true},
		{replyError("TRYAGAIN Multiple keys request during rehashing of slot"), true, true},
		{replyError("CLUSTERDOWN Hash slot not served"), false, false},
		{replyError("NOPERM no"), true, false},
	} {
		inBubble(t, func(t *testing.T, d *redisDriver, cluster *silentCluster) {
			c := slotsAt(t, d, nodeA, 7, 8)
			if tc.requested {
				c.connection.Request(c.slots[8].channel)
				c.connection.Request(c.slots[7].channel)
			}
			cluster.assign(nodeB)
			if got := c.unserved(c.connection, tc.err); got != tc.want {
				t.Errorf("%v: %v", tc.err, got)
			}
			time.Sleep(20 * time.Millisecond)
			moved := nodeA
			if tc.want {
				moved = nodeB
			}
			if placeOf(d, 8) != moved || placeOf(d, 7) != nodeA || d.subscriptions.ready(8) != tc.want || d.subscriptions.ready(7) {
				t.Errorf("%v: slot 8 is at %s, slot 7 at %s; claims of slot 8 may be queued: %v", tc.err, placeOf(d, 8), placeOf(d, 7), d.subscriptions.ready(8))
			}
		})
	}
}

// What a server sends: pushes, confirmations of what it was asked for, and the end of a subscription whose slot has left it.
func TestMessagesOfAMaster(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, cluster *silentCluster) {
		c := slotsAt(t, d, nodeA, 7, 8)
		s := c.slots[7]
		s.confirmed, c.failing = false, true
		fresh := map[int]bool{}
		c.handleMessage(c.connection, nil, fresh)
		c.handleMessage(c.connection, &redis.Subscription{Kind: "ssubscribe", Channel: slotChannel(9, d.name)}, fresh)
		if len(fresh) != 0 || s.confirmed {
			t.Errorf("%v are to be rechecked", fresh)
		}
		c.handleMessage(c.connection, &redis.Subscription{Kind: "ssubscribe", Channel: s.channel}, fresh)
		if len(fresh) != 1 || !fresh[7] || !s.confirmed || c.failing || !d.subscriptions.ready(7) || !c.connection.IsConfirmed(s.channel) {
			t.Errorf("%v are to be rechecked, confirmed: %v", fresh, s.confirmed)
		}
		cluster.assign(nodeB)
		c.handleMessage(c.connection, &redis.Subscription{Kind: "sunsubscribe", Channel: s.channel}, fresh)
		time.Sleep(20 * time.Millisecond)
		if placeOf(d, 7) != nodeB || placeOf(d, 8) != nodeA || len(fresh) != 1 {
			t.Errorf("slot 7 is at %s, slot 8 at %s", placeOf(d, 7), placeOf(d, 8))
		}
	})
}

// Slots without a waiter are left after a while, and those whose master has changed move there. A connection remains while a slot
// needs it.
func TestSweptSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		c := slotsAt(t, d, nodeA, 1, 2, 3, 9000)
		d.waiting["a"], d.waiting["b"], d.waiting["c"] = waiter{slot: 2}, waiter{slot: 9000}, waiter{slot: 4}
		time.Sleep(sweepPause - time.Millisecond)
		if !c.sweep(c.connection) || len(c.slots) != 3 || placeOf(d, 9000) != "" {
			t.Errorf("%d slots remain, slot 9000 is at %q", len(c.slots), placeOf(d, 9000))
		}
		c.slots[3].used = time.Now()
		time.Sleep(time.Millisecond)
		if !c.sweep(c.connection) || len(c.slots) != 2 || c.slots[2] == nil || c.slots[3] == nil || len(d.subscriptions.slots) != 3 {
			t.Errorf("%v remain", c.slots)
		}
		if unused := slotChannel(1, d.name); c.connection.IsWanted(unused) {
			t.Error("the channel of a slot without a waiter is still wanted")
		}
		if time.Sleep(20 * time.Millisecond); placeOf(d, 9000) != nodeB {
			t.Errorf("slot 9000 is at %q", placeOf(d, 9000))
		}
		delete(d.waiting, "a")
		if time.Sleep(sweepPause); c.sweep(c.connection) || len(c.slots) != 0 || d.subscriptions.conns[nodeA] != nil {
			t.Errorf("%v remain", c.slots)
		}
	})
	d, _ := openScripted(t, nil)
	if c := subscribedAt(t, d, 0); !c.sweep(c.connection) || len(c.slots) != 1 {
		t.Error("the channel of a single server is left")
	}
}

// After its connection has broken, each slot is subscribed at its master, and where that is not known it stays.
func TestSlotsAfterABreak(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, cluster *silentCluster) {
		c := slotsAt(t, d, nodeA, 7, 9000)
		c.client = nil
		c.relocate()
		if c.client == nil || c.client.Options().Addr != nodeA || placeOf(d, 7) != nodeA {
			t.Error("a slot that has stayed has no master")
		}
		if time.Sleep(20 * time.Millisecond); placeOf(d, 9000) != nodeB {
			t.Errorf("slot 9000 is at %q", placeOf(d, 9000))
		}
		before := cluster.loaded()
		if d.subscriptions.reload(); cluster.loaded() != before+1 {
			t.Error("the state was not fetched")
		}
	})
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		c := slotsAt(t, d, nodeA, 7)
		d.cluster = redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: new(silentCluster).slots})
		defer func() { _ = d.cluster.Close() }()
		c.relocate()
		if time.Sleep(20 * time.Millisecond); placeOf(d, 7) != nodeA {
			t.Errorf("a slot whose master is not known is at %q", placeOf(d, 7))
		}
	})
}

// A refusal is logged once for each cause, with what the user may not do, and is long remembered. What breaks a connection is not.
func TestReportedBreaks(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		var text strings.Builder
		d.log = slog.New(slog.NewTextHandler(&text, nil))
		c := slotsAt(t, d, nodeA, 7)
		for _, tc := range []struct {
			err  error
			want time.Duration
			logs int
		}{
			{io.EOF, redisnode.MaxBackoff, 0},
			{replyError("LOADING Redis is loading the dataset in memory"), redisnode.MaxBackoff, 0},
			{replyError("NOPERM channels"), maxRefusedBackoff, 1},
			{replyError("NOPERM channels"), maxRefusedBackoff, 1},
			{replyError("NOPERM commands"), maxRefusedBackoff, 2},
		} {
			if got, logs := c.report(tc.err), strings.Count(text.String(), "+ssubscribe"); got != tc.want || logs != tc.logs {
				t.Errorf("%v: %v, with %d lines", tc.err, got, logs)
			}
		}
	})
	inBubble(t, func(t *testing.T, d *redisDriver, cluster *silentCluster) {
		var text strings.Builder
		c := slotsAt(t, d, nodeA, 7)
		d.log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		cluster.mu.Lock()
		cluster.dial = errors.New("no route")
		cluster.mu.Unlock()
		d.work.Go(c.run)
		time.Sleep(5 * time.Millisecond)
		d.cancel()
		d.work.Wait()
		if !strings.Contains(text.String(), "no route") {
			t.Errorf("the cause is lost: %s", &text)
		}
	})
	if fix := (&redisDriver{}).subscribeFix(); strings.Contains(fix, "ssubscribe") {
		t.Errorf("a single server needs %q", fix)
	}
}

// A pause ends with the driver, and says so.
func TestPauseEndsWithTheDriver(t *testing.T) {
	inBubble(t, func(t *testing.T, d *redisDriver, _ *silentCluster) {
		began := time.Now()
		if !d.sleep(time.Second) || time.Since(began) != time.Second {
			t.Errorf("it ended after %v", time.Since(began))
		}
		time.AfterFunc(time.Second, d.cancel)
		if d.sleep(time.Hour) || time.Since(began) != 2*time.Second {
			t.Errorf("it ended after %v, as if its time were over", time.Since(began))
		}
	})
}
