package redlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/cursor"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Inspect returns the claim that a majority of the nodes has stored as the holder. A claim on fewer
// nodes does not have the lock. It is returned among the waiters, with the token that it may have
// had. If nodes did not answer, and there is only one claim of which they may complete a majority, that is
// returned as the holder. Inspect waits for all nodes, because a minority matters here.
func (d *redDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n := d.namesOf(key)
	answers := make(chan answer, len(d.nodes))
	d.ask(d.nodes, d.majority, d.settings.longest(), n.lock, func(ctx context.Context, _ *node) *redisnode.Command {
		return inspectScript.Command(ctx, []string{n.lock, n.waiters}, n.lock)
	}, answers)
	s := snapshot{claims: map[string]*seen{}}
	var t tally
	for heard := 0; heard < len(d.nodes); heard++ {
		select {
		case a := <-answers:
			if a.err != nil {
				t.add(a.err)
				continue
			}
			s.add(a)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.nodes < d.majority {
		return nil, t.noQuorum(len(d.nodes), d.majority, false)
	}
	return s.show(d.majority, len(d.nodes)-s.nodes), nil
}

// A snapshot is what the nodes report about one lock.
type snapshot struct {
	nodes  int
	claims map[string]*seen // by ID, or by the value of a plain client
}

// seen is one claim as several nodes report it.
type seen struct {
	driver.Claim
	on     int             // nodes that have stored it
	tokens map[int64]int   // how many of them with each token
	leases []time.Duration // the rest of the lease on each
}

func (s *snapshot) add(a answer) {
	if len(a.reply) < 4 {
		return
	}
	s.nodes++
	now, _ := strconv.ParseInt(redisnode.Text(a.reply[1]), 10, 64)
	if value, ok := strings.CutPrefix(redisnode.Text(a.reply[2]), "="); ok {
		left := time.Duration(redisnode.Number(a.reply[3])) * time.Millisecond
		s.store(value, redisnode.Holder(value, now, left))
	}
	for i := 4; i+1 < len(a.reply); i += 2 {
		c := redisnode.Waiter(redisnode.Text(a.reply[i]), redisnode.Text(a.reply[i+1]), now)
		if had := s.claims[c.ID]; c.Remaining > 0 && (had == nil || had.on == 0) {
			s.claims[c.ID] = &seen{Claim: c}
		}
	}
}

func (s *snapshot) store(value string, c driver.Claim) {
	name := c.ID
	if name == "" {
		name = value
	}
	had := s.claims[name]
	if had == nil || had.on == 0 {
		had = &seen{Claim: c, tokens: map[int64]int{}}
		s.claims[name] = had
	}
	had.on++
	had.tokens[c.Token]++
	had.leases = append(had.leases, c.Remaining)
	had.Token, had.Age = max(had.Token, c.Token), max(had.Age, c.Age)
}

// won returns the token with which so many nodes have stored a claim, and whether they have. Without a token it is
// not confirmed, unless it is that of a plain client.
func (c *seen) won(nodes int) (token int64, ok bool) {
	if c.ID == "" {
		return 0, c.on >= nodes
	}
	for one, n := range c.tokens {
		if one > token && n >= nodes {
			token = one
		}
	}
	return token, token > 0
}

// holder returns the claim that so many nodes have stored, or nil if there is none or several.
func (s *snapshot) holder(nodes int) (holder *seen) {
	for _, c := range s.claims {
		token, ok := c.won(nodes)
		if c.on == 0 || !ok {
			continue
		}
		if holder != nil {
			return nil
		}
		holder = c
		holder.Token = token
	}
	return holder
}

// show returns the holder, if there is one, and then the others, the oldest first. So many nodes are missing.
func (s *snapshot) show(majority, missing int) []driver.Claim {
	var shown []driver.Claim
	holder := s.holder(majority)
	if holder == nil && missing > 0 {
		holder = s.holder(majority - missing)
	}
	for _, c := range s.claims {
		if c.on > 0 && c != holder {
			c.Phase = driver.Queued
		}
		if c.on > 0 { // the lease that ends the majority
			slices.Sort(c.leases)
			c.Remaining = c.leases[max(len(c.leases)-majority, 0)]
		}
		shown = append(shown, c.Claim)
	}
	slices.SortFunc(shown, func(a, b driver.Claim) int {
		return cmp.Or(-cmp.Compare(a.Phase, b.Phase), -cmp.Compare(a.Age, b.Age), cmp.Compare(a.ID, b.ID))
	})
	return shown
}

// List scans enough nodes to find every lock that a majority has, and returns those locks. A cursor
// is the position in the order of the nodes and the cursor of that node's scan. A step may return
// more keys than were requested. The cursor carries the surplus: repeating the step would miss keys
// if others were unlocked meanwhile.
func (d *redDriver) List(ctx context.Context, prefix, from string, limit int) ([]string, string, error) {
	at, err := parseCursor(from)
	if err != nil {
		return nil, "", err
	}
	if at.node > len(d.nodes) || at.done > at.node {
		return nil, "", cursor.Invalid(from)
	}
	type page struct {
		keys []string
		next string
		err  error
	}
	done := make(chan page, 1)
	d.work.Go(func() {
		keys, next, err := d.list(ctx, prefix, at, limit)
		done <- page{keys, next, err}
	})
	select {
	case p := <-done:
		return p.keys, p.next, p.err
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
}

func (d *redDriver) list(ctx context.Context, prefix string, at position, limit int) ([]string, string, error) {
	var keys []string
	var t tally
	for {
		if at.done+len(d.nodes)-at.node < d.majority {
			t.failed = at.node - at.done // some perhaps while another page was made
			return nil, "", t.noQuorum(len(d.nodes), d.majority, false)
		}
		n := min(limit-len(keys), len(at.left))
		keys, at.left = append(keys, at.left[:n]...), at.left[n:]
		switch {
		case len(at.left) == 0 && at.done >= d.majority:
			return keys, "", nil
		case len(keys) == limit:
			return keys, at.String(), nil
		}
		step, next, err := d.scan(ctx, at, prefix, limit)
		switch {
		case err != nil && !at.every && at.node > 0: // keys that it was to return are missing
			t.add(err)
			at = position{every: true}
		case err != nil:
			t.add(err)
			at = position{node: at.node + 1, done: at.done, every: at.every}
		case next == 0:
			at = position{node: at.node + 1, done: at.done + 1, left: step, every: at.every}
		default:
			at.scan, at.left = next, step
		}
	}
}

// scan does one step on one node. It returns the keys that a majority has and, unless every node is to return its
// own, that no node has which is scanned later: a node that was scanned already may have got them since.
func (d *redDriver) scan(ctx context.Context, at position, prefix string, limit int) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, d.settings.longest())
	defer cancel()
	n, end := d.nodes[at.node], min(at.node+d.majority-at.done, len(d.nodes))
	if at.every {
		end = at.node + 1
	}
	found, next, err := n.scan(ctx, d.prefix+prefix, at.scan, limit)
	if err != nil || len(found) == 0 {
		return nil, next, redisnode.Classify(err)
	}
	owners := d.ownersOf(ctx, found)
	var keys []string
	for i, lock := range found {
		if d.isShownBy(n, owners[i], end) {
			keys = append(keys, strings.TrimPrefix(lock, d.prefix))
		}
	}
	return keys, next, nil
}

func (n *node) scan(ctx context.Context, prefix string, from uint64, limit int) (found []string, next uint64, err error) {
	defer recovered(&err)
	return redisnode.Scan(ctx, n.client, prefix, from, limit, nil)
}

// unknownOwner stands for the owner on a node that did not answer, or did not say.
const unknownOwner = redisnode.Separator

// ownersOf returns the owner of each lock on each node, or "" if there is none. It does not wait for nodes that
// have not answered lately, if there are enough others.
func (d *redDriver) ownersOf(ctx context.Context, locks []string) [][]string {
	owners := make([][]string, len(locks))
	for i := range owners {
		owners[i] = slices.Repeat([]string{unknownOwner}, len(d.nodes))
	}
	type column struct {
		node   int
		values []string
	}
	columns := make(chan column, len(d.nodes))
	asked := d.audible()
	for _, n := range asked {
		d.work.Go(func() { columns <- column{n.at, n.ownersOf(ctx, locks)} })
	}
	for range asked {
		c := <-columns
		for i, v := range c.values {
			owners[i][c.node] = v
		}
	}
	return owners
}

// audible returns the nodes that have answered lately, or all if those are no majority. Some calls to the others are
// still made, in the background.
func (d *redDriver) audible() (nodes []*node) {
	var silent []*node
	for _, n := range d.nodes {
		if n.health.isSilent() {
			silent = append(silent, n)
		} else {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) < d.majority {
		return d.nodes
	}
	for _, n := range silent {
		if n.health.admits() {
			d.work.Go(n.probe)
		}
	}
	return nodes
}

// probe finds out whether a silent node answers again.
func (n *node) probe() {
	ctx, cancel := context.WithTimeout(n.driver.ctx, n.driver.settings.longest())
	defer cancel()
	n.health.record(n.ping(ctx) == nil)
}

func (n *node) ping(ctx context.Context) (err error) {
	defer recovered(&err)
	return n.client.Ping(ctx).Err()
}

func (n *node) ownersOf(ctx context.Context, locks []string) (owners []string) {
	n.health.press()
	owners, err := n.readOwners(ctx, locks)
	n.health.record(err == nil)
	return owners
}

func (n *node) readOwners(ctx context.Context, locks []string) (owners []string, err error) {
	defer recovered(&err)
	pipe := n.client.Pipeline()
	for _, lock := range locks {
		pipe.GetRange(ctx, lock, 0, 31)
	}
	cmds, err := pipe.Exec(ctx)
	var answer redis.Error
	if err != nil && !errors.As(err, &answer) {
		return nil, err
	}
	for _, c := range cmds {
		owner := c.(*redis.StringCmd).Val()                                //nolint:forcetypeassert // GETRANGE has no other
		if c.Err() != nil && !redis.HasErrorPrefix(c.Err(), "WRONGTYPE") { // which is no lock
			owner = unknownOwner
		}
		owners = append(owners, owner)
	}
	return owners, nil
}

// isShownBy reports whether a majority may have the same owner and n is the last of its nodes before end.
func (d *redDriver) isShownBy(n *node, owners []string, end int) bool {
	mine, same, last := owners[n.at], 0, -1
	for i, o := range owners {
		switch {
		case o == unknownOwner:
			same++
		case o == mine && o != "":
			same++
			if i < end {
				last = i
			}
		}
	}
	return mine == unknownOwner || (same >= d.majority && last == n.at)
}

type position struct {
	node, done int
	scan       uint64
	left       []string // found and not yet returned
	every      bool     // a node has failed: each one returns what it has, so that keys may be returned again
}

// everyMark is in the cursor of such a position.
const everyMark = "*"

func (p position) String() string {
	words := []string{strconv.Itoa(p.node), strconv.Itoa(p.done), strconv.FormatUint(p.scan, 10)}
	if p.every {
		words[0] += everyMark
	}
	return strings.Join(append(words, p.left...), redisnode.Separator)
}

func parseCursor(s string) (p position, err error) {
	if s == "" {
		return p, nil
	}
	words := strings.Split(s, redisnode.Separator)
	bad := cursor.Invalid(s)
	if len(words) < 3 {
		return p, bad
	}
	first, every := strings.CutSuffix(words[0], everyMark)
	node, e1 := strconv.Atoi(first)
	done, e2 := strconv.Atoi(words[1])
	scan, e3 := strconv.ParseUint(words[2], 10, 64)
	if e1 != nil || e2 != nil || e3 != nil || node < 0 || done < 0 {
		return p, bad
	}
	return position{node, done, scan, words[3:], every}, nil
}
