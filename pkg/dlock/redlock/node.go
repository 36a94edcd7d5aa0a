package redlock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A node is one of the servers.
type node struct {
	at     int
	addr   string
	client *redis.Client
	driver *redDriver
	ear    ear
	health health

	explainer redisnode.Explainer

	mu       sync.Mutex
	leftover []leftover // what is to be removed from it; see sweep.go
	sweeping bool
}

// An answer is what one node said to a call.
type answer struct {
	node  *node
	reply []any
	err   error
}

// word is the first element of a reply, "" if there was none.
func (a answer) word() string {
	if a.err != nil {
		return ""
	}
	return redisnode.Text(a.reply[0])
}

// number is the third element of a reply.
func (a answer) number() int64 {
	n, _ := strconv.ParseInt(redisnode.Text(a.reply[2]), 10, 64)
	return n
}

// A call makes the command for one node. It is called on the goroutine of the caller.
type call func(ctx context.Context, n *node) *redisnode.Command

// ask sends a call to some nodes at once. Each gives exactly one answer, at the latest
// when bound has passed: to the channel, which has room for all of them, so that
// nobody has to wait for the last. Calls belong to the driver and not to the caller,
// whose context ends none of them. A node that is silent is spared as long as need
// others answer. echo must be the second element of a reply, or with a list of answers
// the first, so that no reply is taken for that of another.
func (d *redDriver) ask(nodes []*node, need int, bound time.Duration, echo string, make call, to chan<- answer) {
	if len(nodes) == 0 {
		return
	}
	t := newTrip(len(nodes), need, bound)
	for _, n := range nodes {
		cmd := make(t.ctx, n)
		d.work.Go(func() {
			a := n.visit(t, cmd, echo)
			t.note(a.err)
			to <- a
		})
	}
}

// visit makes one call of a trip, or none to a node that is silent and not needed.
func (n *node) visit(t *trip, cmd *redisnode.Command, echo string) answer {
	if !n.health.admits() {
		if t.spares() {
			return answer{node: n, err: errSilent}
		}
		n.health.press()
	}
	return n.run(t.ctx, cmd, echo)
}

// run makes one call. A server that does not know the script gets it whole.
func (n *node) run(ctx context.Context, cmd *redisnode.Command, echo string) answer {
	err := n.client.Process(ctx, cmd)
	if redisnode.IsNoScript(err) {
		cmd = cmd.Whole(ctx)
		err = n.client.Process(ctx, cmd)
	}
	if errors.Is(err, context.DeadlineExceeded) && cmd.Withdraw() {
		err = n.explainer.Explain(n.client, err)
	}
	a := n.judge(cmd, err, echo)
	n.health.note(a.err == nil || (driver.ClassOf(a.err) != driver.Ambiguous && !errors.Is(a.err, driver.ErrUnavailable)))
	return a
}

func (n *node) judge(cmd *redisnode.Command, err error, echo string) answer {
	if !cmd.Answered(err) {
		return answer{node: n, err: cmd.Classify(err)}
	}
	reply, ok := cmd.Val().([]any)
	if !ok || len(reply) == 0 || (redisnode.Text(reply[0]) != echo && (len(reply) < 3 || redisnode.Text(reply[1]) != echo)) {
		return answer{node: n, err: redisnode.ErrReply}
	}
	return answer{node: n, reply: reply}
}

// names are the keys and the channel of one lock.
type names struct{ lock, fence, waiters, bars, channel string }

func (n *names) bar(id string) string { return n.bars + id }

// namesOf names the siblings as package redislock does, so that fences are shared by
// who moves from one server to several.
func (d *redDriver) namesOf(key string) names {
	lock := d.prefix + key
	base, _ := redisnode.Siblings(lock)
	base += redisnode.Separator
	return names{lock: lock, fence: base + "f", waiters: base + "w", bars: base + "b", channel: channelPrefix + lock}
}

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
