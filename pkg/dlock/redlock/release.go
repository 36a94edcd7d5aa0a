package redlock

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Release removes a claim from all nodes and returns when a majority has answered. The others are
// handled in the background. Only this driver knows whether the claim was waiting; the waiters on
// the nodes may be older.
func (d *redDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	c, was := d.retire(r)
	rem := d.removal(r.Key, r.ID, r.TTL)
	if was == driver.Queued {
		rem.channel = "" // it may have a token on some nodes, and has not won
	}
	for i := range d.nodes {
		if r.Unanswered || (c != nil && rem.isOpen(c, i)) {
			rem.tombstones[i] = driver.TombstoneTTL(r.TTL)
		}
	}
	rem.retry = true
	st, err := rem.run(ctx)
	d.freed(c, r.Key, rem)
	switch {
	case err != nil:
		return st, err
	case was == driver.Queued:
		return driver.State{Phase: driver.Queued}, nil
	case st.Phase == driver.Queued: // only shown on a node, which a call has reached late or has yet to reach
		return driver.State{Phase: driver.Gone}, nil
	}
	return st, nil
}

// Evict is a release for which the token must match. A waiting claim gets a tombstone, and finds
// out when it is next renewed.
func (d *redDriver) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	rem := d.removal(key, id, driver.TombstoneTTL(0))
	rem.must = strconv.FormatInt(token, 10)
	if token == 0 {
		for i := range rem.tombstones {
			rem.tombstones[i] = driver.TombstoneTTL(0)
		}
	}
	return rem.run(ctx)
}

// retire ends a claim in this driver, so that nothing more is stored for it. The next claim in the
// queue is notified only after the nodes.
func (d *redDriver) retire(r driver.Ref) (*claim, driver.Phase) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.claims[claimID{r.Key, r.ID}]
	if c == nil {
		return nil, driver.Gone
	}
	was := c.phase
	if was == driver.Queued {
		if time.Now().After(c.until) {
			was = driver.Gone
		}
		d.drop(c)
		return c, was
	}
	c.phase = driver.Gone
	delete(d.claims, claimID{r.Key, r.ID})
	if len(d.released) >= maxReleased {
		clear(d.released)
	}
	d.released[r.ID] = struct{}{}
	return c, was
}

// maxReleased is how many claims are remembered that were held and released.
const maxReleased = 256

// freed lets the next claim in the queue try, after other processes if there are any. If it is the turn of another
// one, the claim thereby says on the nodes that it waits.
func (d *redDriver) freed(c *claim, key string, rem *removal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	others := rem.subscribers
	if rem.told != "" {
		others = 0
	}
	if others > 0 {
		if len(d.yields) >= maxYields {
			clear(d.yields)
		}
		d.yields[key] = time.Now().Add(scatter(d.window(others + 1)))
	}
	q := d.queues[key]
	if q == nil || c == nil || q.holder != c {
		return
	}
	q.holder = nil
	if others > 0 {
		d.nudgeLater(q, d.window(others+1))
	} else {
		if head := d.first(q, time.Now()); head != nil && (rem.told == "" || rem.told == head.id) {
			head.told.came, head.told.after = true, c.token
		}
		d.nudge(q)
	}
	d.closeQueue(q)
}

// maxYields is how many keys are remembered for which other processes go first.
const maxYields = 1024

// A removal removes a claim from all nodes.
type removal struct {
	driver *redDriver
	names
	id         string
	ttl        time.Duration
	must       string          // the token that must match, "" for any
	tombstones []time.Duration // by node
	retry      bool            // nodes that do not answer are asked again in the background

	held, queued, gone int
	subscribers        int    // of other processes, at most on any node
	told               string // the claim whose turn it is, by the first node that has told one
	tally              tally
}

func (d *redDriver) removal(key, id string, ttl time.Duration) *removal {
	return &removal{driver: d, names: d.namesOf(key), id: id, ttl: ttl, tombstones: make([]time.Duration, len(d.nodes))}
}

func (m *removal) isOpen(c *claim, node int) bool {
	m.driver.mu.Lock()
	defer m.driver.mu.Unlock()
	return c.open[node] > 0
}

func (m *removal) run(ctx context.Context) (driver.State, error) {
	d := m.driver
	answers := make(chan answer, len(d.nodes))
	turn := millis(d.turnTime())
	d.ask(d.nodes, d.majority, d.timeout(m.ttl), m.id, func(ctx context.Context, n *node) *redisnode.Command {
		return releaseScript.Command(ctx, m.releaseKeys(m.id), m.id, millis(m.tombstones[n.at]), "-1", m.must, m.channel, "0", turn)
	}, answers)
	for heard := 0; heard < len(d.nodes); heard++ {
		select {
		case a := <-answers:
			m.take(a)
		case <-ctx.Done():
			m.watch(answers, len(d.nodes)-heard)
			return driver.State{}, ctx.Err()
		}
		if st, sure := m.verdict(len(d.nodes) - heard - 1); sure {
			m.watch(answers, len(d.nodes)-heard-1)
			return st, nil
		}
	}
	return driver.State{}, m.tally.noQuorum(len(d.nodes), d.majority, true)
}

// timeout returns how long one node may take to release a claim.
func (d *redDriver) timeout(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return d.settings.longest()
	}
	return d.settings.patience(ttl)
}

// verdict returns what was found, if it is certain or cannot become more certain. A claim that a
// majority did not have was not held, whatever the other nodes had.
func (m *removal) verdict(left int) (driver.State, bool) {
	majority := m.driver.majority
	switch {
	case m.held >= majority:
		return driver.State{Phase: driver.Held}, true
	case m.gone+m.queued >= majority && m.queued > 0:
		return driver.State{Phase: driver.Queued}, true
	case m.gone+m.queued >= majority:
		return driver.State{Phase: driver.Gone}, true
	case left == 0 && m.held+m.gone+m.queued >= majority:
		return driver.State{Phase: driver.Held}, true
	}
	return driver.State{}, false
}

func (m *removal) take(a answer) {
	switch a.word() {
	case "held":
		m.held++
		if len(a.reply) > 3 {
			m.subscribers = max(m.subscribers, int(redisnode.Number(a.reply[3]))-a.node.subscription.count(m.channel))
		}
		if len(a.reply) > 4 {
			m.told = cmp.Or(m.told, redisnode.Text(a.reply[4]))
		}
	case "queued":
		m.queued++
	case "gone":
		m.gone++
	default:
		m.tally.add(a.err)
		m.again(a.node)
	}
}

// watch waits in the background for the nodes that have not answered.
func (m *removal) watch(answers <-chan answer, left int) {
	if left == 0 {
		return
	}
	m.driver.work.Go(func() {
		for range left {
			if a := <-answers; a.err != nil {
				m.again(a.node)
			}
		}
	})
}

func (m *removal) again(n *node) {
	if m.retry {
		n.leave(leftover{names: m.names, id: m.id, tombstone: m.tombstones[n.at], by: time.Now().Add(driver.TombstoneTTL(m.ttl))})
	}
}
