package redlock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A listening driver has one waiter and three nodes, which confirm channels when a test says so.
type listening struct {
	*quietDriver
	client *redis.Client
}

func startListening(t *testing.T) *listening {
	t.Helper()
	l := &listening{startQuiet(t), redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})} // it is never dialed
	t.Cleanup(func() { _ = l.client.Close() })
	l.channel = channelPrefix + "own"
	for i := range 3 {
		n := &node{at: i, driver: l.redDriver}
		n.subscription.node = n
		l.nodes = append(l.nodes, n)
		n.subscription.missed, n.subscription.wanted = map[string]bool{}, map[string]time.Time{}
		for _, channel := range l.channels() {
			n.subscription.wanted[channel] = time.Now()
		}
		l.connect(i)
	}
	return l
}

func (l *listening) channels() [2]string { return [2]string{l.channel, channelPrefix + "p:k"} }

func (l *listening) connect(node int) {
	l.nodes[node].subscription.use(redisnode.NewSubscription(l.Context(), l.client, false, time.Second))
}

// confirms has a node confirm one of the channels, and returns how often the waiter is asked to renew.
func (l *listening) confirms(node, channel int) (asked int) {
	e := &l.nodes[node].subscription
	l.onSubscribed(e, e.connection, l.channels()[channel])
	for {
		select {
		case <-l.Events():
			asked++
		default:
			return asked
		}
	}
}

// A confirmation is of a channel by a node.
type confirmation struct{ node, channel int }

// eachOrder calls f with each order of what is left.
func eachOrder(done, left []confirmation, f func([]confirmation)) {
	if len(left) == 0 {
		f(done)
	}
	for i := range left {
		rest := append(append([]confirmation{}, left[:i]...), left[i+1:]...)
		eachOrder(append(done[:len(done):len(done)], left[i]), rest, f)
	}
}

// In whatever order the nodes confirm the two channels, a waiter is asked once: when a majority has confirmed each.
func TestMajorityOfSubscriptionsAsksOnce(t *testing.T) {
	all := []confirmation{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}
	eachOrder(nil, all, func(order []confirmation) {
		l, counts, was := startListening(t), [2]int{}, false
		for _, c := range order {
			counts[c.channel]++
			isMajority := counts[0] >= 2 && counts[1] >= 2
			want := 0
			if isMajority && !was {
				want = 1
			}
			if got := l.confirms(c.node, c.channel); got != want {
				t.Fatalf("%v: asked %d times after %v, want %d", order, got, c, want)
			}
			was = isMajority
		}
	})
}

// After each connection that broke, the waiter is asked once more when both channels are confirmed, even if a majority was never
// missing. A connection that breaks before that changes nothing.
func TestBrokenConnectionAsksOnce(t *testing.T) {
	eachOrder(nil, []confirmation{{2, 0}, {2, 1}}, func(order []confirmation) {
		for _, confirmed := range []int{0, 1, 2} { // channels, before the connection breaks again
			l := startListening(t)
			for node := range l.nodes {
				l.confirms(node, 0)
				l.confirms(node, 1)
			}
			reconnect := func(confirms []confirmation, want int) {
				t.Helper()
				l.nodes[2].subscription.disconnect()
				l.connect(2)
				for i, c := range confirms {
					asked := l.confirms(c.node, c.channel)
					if isLast := i == 1; isLast && asked != want || !isLast && asked != 0 {
						t.Errorf("%v, after %d before: asked %d times at the confirmation of channel %d", order, confirmed, asked, c.channel)
					}
				}
			}
			reconnect(order[:confirmed], 1)
			reconnect([]confirmation{order[1], order[0]}, 1)
			reconnect(order, 1)
		}
	})
}

// A node whose connection breaks while others have none completes the majority each time, and then the waiter is asked once, not
// also because of what it may have missed.
func TestMajorityAfterABreakAsksOnce(t *testing.T) {
	eachOrder(nil, []confirmation{{1, 0}, {1, 1}}, func(order []confirmation) {
		l := startListening(t)
		for _, c := range []confirmation{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
			l.confirms(c.node, c.channel)
		}
		l.nodes[1].subscription.disconnect()
		l.connect(1)
		if first, second := l.confirms(1, order[0].channel), l.confirms(1, order[1].channel); first != 0 || second != 1 {
			t.Errorf("%v: asked %d and %d times, want 0 and 1", order, first, second)
		}
	})
}

// A lock is waited for while a node has no connection, because the last one broke: then the waiter is asked as well.
func TestWantedWhileBrokenIsMissed(t *testing.T) {
	l := startListening(t)
	for node := range l.nodes {
		l.confirms(node, 0)
		l.confirms(node, 1)
	}
	e := &l.nodes[2].subscription
	delete(e.wanted, l.channels()[1])
	e.disconnect()
	e.stirred = make(chan struct{}, 1)
	e.want(l.channels()[1])
	l.connect(2)
	if asked := l.confirms(2, 0) + l.confirms(2, 1); asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
}
