package redislock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A renewal that grants the lock to the first of its claims counts the places of the others from that claim on,
// which has none any more. It counts from 0 and rounds down. If the claims came evenly, this gives their places.
func TestScriptRenewalCountsFromTheGranted(t *testing.T) {
	const letters, step = "bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST", 1000
	for name, late := range map[string]int64{"evenly": 0, "the first a little late": step / 4} {
		t.Run(name, func(t *testing.T) {
			s := newScriptLock(t)
			s.wait(scriptID("b"), late, 1_000_000, 0, "-")
			for i := 1; i < len(letters); i++ {
				s.wait(scriptID(letters[i:i+1]), int64(i)*step, 1_000_000, 0, "-")
			}
			want := []string{fmt.Sprint("held b ", scriptStart)}
			const behind = 17 // b, and the 16 whose places are read
			for i := behind; i < len(letters); i++ {
				want = append(want, fmt.Sprintf("queued %s 0 %d 0", scriptID(letters[i:i+1]), i)) // after b and i-1 waiters
			}
			s.renew(strings.Join(strings.Split("b"+letters[behind:], ""), " "), want...)
		})
	}
}

// A claim that does not wait writes nothing if it does not get the lock: at maxmemory the answer is still that the
// lock is held, also if a grant would skip a waiter that was skipped before, or finds the latest deadline that is
// allowed.
func TestScriptRefusesWithoutMemory(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 1, "dlock:nobody")
	s.wait("c", 1, 3_000_000, 0, "-")
	s.check(s.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	s.acquire("d", 30_000, 0, 0, "gone d 0")
	s.join("d", "p3", false, "gone d 0")
	s.check(s.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	s.record("b", 1_000_000, fmt.Sprintf(`%d.42 1 1 dlock:nobody {"of": "b"}`, scriptSecond))
}

// A release grants to a waiter that has only a microsecond left, and returns the value that it has replaced.
func TestScriptGrantsInTheLastMicrosecond(t *testing.T) {
	s := newScriptLock(t)
	s.listen("dlock:p")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1, 0, "dlock:p")
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders}
	answer := fmt.Sprint(s.run(releaseScript.Source, keys, scriptID("a")+unmarked))
	s.equal("the answer", answer, fmt.Sprintf(`a+ %d 1 dlock:p {"of": "a"}`, scriptStart))
	s.stored(fmt.Sprintf(`b. %d 1 dlock:p {"of": "b"}`, scriptStart+1), 1)
}

// The pause before the next connection is reset when a channel is confirmed. A server that serves none of the
// slots confirms none: its refusal drops the only channel, and the pause stays as it is.
func TestUnservedSlotKeepsThePause(t *testing.T) {
	client := testenv.Redis(t, "--cluster-enabled", "yes").Client() // without slots
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the slot is not looked up again
	d := &redisDriver{ctx: ctx}
	d.subscriptions.driver = d
	s := &slotSubscription{channel: slotChannel(0, "me"), attempted: make(chan struct{})}
	const before = redisnode.Backoff(80 * time.Millisecond)
	c := &subscription{all: &d.subscriptions, pause: before, slots: map[int]*slotSubscription{0: s}}
	s.conn = c
	connection := redisnode.NewSubscription(t.Context(), client, true, 10*time.Second)
	if !c.use(connection) {
		t.Fatal("the driver is closed")
	}
	if err := connection.Open(); err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { received <- c.receive(connection) }()
	testenv.Eventually(t, 20*time.Second, "the server refuses the channel", func() bool {
		d.subscriptions.mu.Lock()
		defer d.subscriptions.mu.Unlock()
		return len(c.slots) == 0
	})
	connection.Close()
	if err := <-received; err == nil || c.pause != before {
		t.Errorf("the pause is %v after %v, want %v", time.Duration(c.pause), err, time.Duration(before))
	}
	d.work.Wait()
}
