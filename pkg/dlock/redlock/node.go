package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A node is one of the servers.
type node struct {
	at           int
	addr         string
	client       *redis.Client
	driver       *redDriver
	subscription subscription
	health       health
	clock        clock

	explainer redisnode.Explainer

	mu       sync.Mutex
	leftover []leftover // what is to be removed from it; see sweep.go
	sweeping bool
}

// An answer is one node's answer to a call.
type answer struct {
	node  *node
	reply []any
	err   error
}

// word returns the first element of a reply, or "" if there was none.
func (a answer) word() string {
	if a.err != nil {
		return ""
	}
	return redisnode.Text(a.reply[0])
}

// token returns the third element of a reply, and whether it can be a token.
func (a answer) token() (token int64, ok bool) {
	token, err := strconv.ParseInt(redisnode.Text(a.reply[2]), 10, 64)
	return token, err == nil && token < maxToken
}

// A call makes the command for one node. It runs in the caller's goroutine.
type call func(ctx context.Context, n *node) *redisnode.Command

// ask sends a call to several nodes at once. Each node gives exactly one answer, at the latest when
// timeout has passed. Answers go to the channel, which has room for all of them, so that the caller
// need not wait for the last one. Calls belong to the driver and not to the caller, whose context
// ends none of them. A silent node is not called as long as need others answer. echo must be the
// second element of a reply, or the first of a list of answers, so that no reply is taken for the
// reply to another call.
func (d *redDriver) ask(nodes []*node, need int, timeout time.Duration, echo string, make call, to chan<- answer) {
	if len(nodes) == 0 {
		return
	}
	t := newTrip(len(nodes), need, timeout)
	for _, n := range nodes {
		cmd := make(t.ctx, n)
		d.workers.run(d.ctx, func() {
			a := n.visit(t, cmd, echo)
			t.record(a.err)
			to <- a
		})
	}
}

// visit makes one call of a trip, or none if the node is silent and not needed.
func (n *node) visit(t *trip, cmd *redisnode.Command, echo string) answer {
	if !n.health.admits() {
		if t.spares() {
			return answer{node: n, err: errSilent}
		}
		n.health.press()
	}
	return n.run(t.ctx, cmd, echo)
}

// run makes one call. If the server does not know the script, run sends the full script.
func (n *node) run(ctx context.Context, cmd *redisnode.Command, echo string) answer {
	a, err := n.call(ctx, cmd, echo)
	if err != nil {
		a = answer{node: n, err: err}
	}
	n.health.record(a.err == nil || (err == nil && driver.ClassOf(a.err) != driver.Ambiguous && !errors.Is(a.err, driver.ErrUnavailable)))
	return a
}

func (n *node) call(ctx context.Context, cmd *redisnode.Command, echo string) (a answer, panicked error) {
	defer recovered(&panicked)
	err := n.client.Process(ctx, cmd)
	if redisnode.IsNoScript(err) {
		cmd = cmd.Whole(ctx)
		err = n.client.Process(ctx, cmd)
	}
	if errors.Is(err, context.DeadlineExceeded) && cmd.Withdraw() {
		err = n.explainer.Explain(n.client, err)
	}
	return n.judge(cmd, err, echo), nil
}

// recovered makes a panic of a hook of the client an error. The driver calls nodes in goroutines of its own,
// where no caller could recover.
func recovered(err *error) {
	if reason := recover(); reason != nil {
		*err = fmt.Errorf("redlock: a hook of the client panicked: %v", reason)
	}
}

func (n *node) judge(cmd *redisnode.Command, err error, echo string) answer {
	if !cmd.Answered(err) {
		return answer{node: n, err: cmd.Classify(err)}
	}
	reply, ok := cmd.Val().([]any)
	if !ok || len(reply) == 0 || (redisnode.Text(reply[0]) != echo && (len(reply) < 3 || redisnode.Text(reply[1]) != echo)) {
		return answer{node: n, err: redisnode.ErrUnexpectedReply}
	}
	return answer{node: n, reply: reply}
}

// names are the keys and the channel of one lock.
type names struct{ lock, fence, waiters, queue, turn, tombstones, channel string }

func (c *claim) acquireKeys() []string {
	return []string{c.lock, c.fence, c.tombstone(c.id), c.waiters, c.queue, c.turn}
}

func (n *names) releaseKeys(id string) []string {
	return []string{n.lock, n.tombstone(id), n.waiters, n.queue, n.turn, n.fence}
}

func (n *names) tombstone(id string) string { return n.tombstones + id }

// namesOf uses the same names as package redislock, so that tokens keep increasing after a move
// from one server to several.
func (d *redDriver) namesOf(key string) names {
	lock := d.prefix + key
	base, _ := redisnode.Siblings(lock)
	base += redisnode.Separator
	return names{lock: lock, fence: base + "f", waiters: base + "w", queue: base + "q", turn: base + "t", tombstones: base + "b", channel: channelPrefix + lock}
}

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
