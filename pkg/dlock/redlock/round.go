package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A round is one attempt to win a lock, in one phase or in two that overlap.
//
// First, every node is asked to store the claim, with a proposal for the token if the claim does not
// contend yet. If a majority stores the claim and accepts the proposal, the lock is won. A node that does
// not accept it answers with a candidate for the token. Once a majority has stored the claim, and not
// accepted the proposal, the highest candidate becomes the token and is written to every node that
// has stored the claim; a node that answers the first phase late gets the token then. The lock is
// won when a majority has accepted the token.
//
// A node accepts a token only if it is greater than every token that it accepted before, and only
// while it has the claim stored by this same round. Two majorities share a node; so of two locks
// that were won, the one whose token that node accepted second has the greater token.
// docs/adr/0010-redlock-fencing.md has the whole argument.
type round struct {
	driver  *redDriver
	claim   *claim
	number  int64
	sent    time.Time
	ttl     time.Duration
	until   time.Time
	timeout time.Duration // of each call

	votes     []ballot
	commands  []*redisnode.Command // of the first phase, by node; nil if it was withdrawn
	proposal  int64                // 0 if there is none
	isShown   bool                 // nodes may show that the claim waits
	candidate int64                // the highest so far
	token     int64                // 0 until it is certain which one is to win
	raises    int
	tally     tally
	owners    map[string]int // of nodes that are taken
	left      time.Duration  // until the first of these leases ends, farAway if none does
	impatient bool           // nodes that have not answered by now do not count
	first     chan answer
	second    chan answer
	waiting   int // answers that are still to come, of both
}

// A ballot is the state of one node in a round.
type ballot uint8

const (
	pending    ballot = iota // has not answered
	failed                   // did not answer, or with an error
	unfit                    // has stored the claim by another round, or lost it
	taken                    // another has it
	tombstoned               // the claim is not to be stored any more
	stored                   // has the claim, and not the token
	confirming               // was sent the token
	confirmed                // has both
)

// An outcome is how a round ended.
type outcome struct {
	won        bool
	token      int64
	round      int64
	until      time.Time
	tombstoned bool
	split      bool // no claim has a majority, or one is just releasing
	left       time.Duration
	err        error
	rest       func() // handles the nodes that have not answered, when it is known whether the claim is held
}

// farAway stands for the end of a lease that does not end.
const farAway = 24 * time.Hour

// maxRaises is how often a round may choose a greater token.
const maxRaises = 4

// contend makes one round. It returns as soon as the outcome is certain. The caller must call rest,
// which handles the nodes that have not answered by then.
func (d *redDriver) contend(ctx context.Context, c *claim) outcome {
	n, ttl := len(d.nodes), d.ttlOf(c)
	r := &round{
		driver: d, claim: c, number: d.rounds.Add(1), sent: time.Now(), ttl: ttl,
		timeout: d.settings.patience(ttl), votes: make([]ballot, n), owners: map[string]int{},
		left: farAway, first: make(chan answer, n), second: make(chan answer, n*(maxRaises+2)),
	}
	r.until = d.settings.until(r.sent, r.ttl)
	r.proposal, r.isShown = d.propose(c)
	if len(d.opened(c)) == 0 {
		return outcome{rest: func() {}} // it was released; see judge
	}
	r.submit()
	out := r.run(ctx)
	if out.won {
		d.pace.add(time.Since(r.sent))
	} else if r.count(pending) > 0 || !isUnsent(out.err) {
		r.takeBack()
	}
	out.rest = func() {
		if r.waiting > 0 {
			d.work.Go(func() { r.drain(out.won) })
		} else if out.won {
			r.fill()
		}
	}
	return out
}

// submit is the first phase.
func (r *round) submit() {
	d, c := r.driver, r.claim
	heartbeat, isShown := "0", "0"
	if c.waits {
		heartbeat = millis(c.heartbeat(r.ttl))
	}
	if r.isShown {
		isShown = "1"
	}
	r.waiting += len(d.nodes)
	d.ask(d.nodes, d.majority, r.timeout, c.id, func(ctx context.Context, _ *node) *redisnode.Command {
		cmd := acquireScript.Command(ctx, c.acquireKeys(),
			c.id, r.number, millis(r.ttl), "0", heartbeat, c.info, r.proposal, d.channel, c.began, isShown)
		r.commands = append(r.commands, cmd)
		return cmd
	}, r.first)
}

// run processes answers until they decide the round.
func (r *round) run(ctx context.Context) outcome {
	var grace <-chan time.Time
	for {
		if out, over := r.verdict(); over {
			return out
		}
		if grace == nil && r.isTorn() {
			t := time.NewTimer(max(2*time.Since(r.sent), 5*time.Millisecond))
			defer t.Stop()
			grace = t.C
		}
		select {
		case a := <-r.first:
			r.takeFirst(a)
			r.confirm()
		case a := <-r.second:
			r.takeSecond(a)
		case <-grace:
			r.impatient = true
		case <-ctx.Done():
			return outcome{err: r.cutShort(ctx.Err())}
		}
	}
}

// cutShort returns the error of a round whose context has ended. If no node has been sent anything
// by then, it withdraws the calls, and none is sent.
func (r *round) cutShort(err error) error {
	unsent := !r.tally.ambiguous && !r.isKnown()
	for i, v := range r.votes {
		if v == pending && r.commands[i].Withdraw() {
			r.votes[i] = failed
			r.commands[i] = nil
			r.driver.cannotArrive(r.claim, i)
		} else if v == pending {
			unsent = false
		}
	}
	if !unsent {
		return err
	}
	return driver.Classify(r.tally.quorumError(len(r.votes), r.driver.majority, redisnode.Unsent(err)), driver.Transient)
}

// isKnown reports whether some node has the claim, or shows that it waits.
func (r *round) isKnown() bool {
	return r.count(stored, confirming, confirmed, unfit) > 0 || (r.claim.waits && r.count(taken) > 0)
}

func (r *round) count(of ...ballot) (n int) {
	for _, v := range r.votes {
		for _, b := range of {
			if v == b {
				n++
			}
		}
	}
	return n
}

// isTorn reports whether a majority has answered without a decision: the round then does not wait
// for a dead node until the end.
func (r *round) isTorn() bool {
	return r.token == 0 && r.count(stored, confirmed, taken, unfit) >= r.driver.majority
}

// verdict reports whether the round is decided.
func (r *round) verdict() (outcome, bool) {
	majority := r.driver.majority
	possible := r.count(stored, confirming, confirmed)
	if !r.impatient {
		possible += r.count(pending)
	}
	switch {
	case r.count(tombstoned) > 0:
		return outcome{tombstoned: true}, true
	case r.count(confirmed) >= majority && !time.Now().Before(r.until):
		return outcome{err: ErrLeaseExpired}, true
	case r.count(confirmed) >= majority:
		return outcome{won: true, token: r.token, round: r.number, until: r.until}, true
	case possible >= majority:
		return outcome{}, false
	case !r.impatient && r.count(pending) > 0 && r.count(taken, stored, confirming, confirmed, unfit) < majority:
		return outcome{}, false // whether others have it is still to be heard
	case r.count(taken, stored, confirming, confirmed, unfit) < majority:
		return outcome{err: r.tally.noQuorum(len(r.votes), majority, r.isKnown())}, true
	}
	most := 0
	for _, n := range r.owners {
		most = max(most, n)
	}
	return outcome{split: most < majority || r.count(stored, confirming, confirmed, unfit) > 0, left: r.left}, true
}

func (r *round) takeFirst(a answer) {
	r.waiting--
	if r.commands[a.node.at] != nil { // else cutShort has withdrawn and counted it
		r.driver.answered(r.claim, a)
	}
	vote := &r.votes[a.node.at]
	switch a.word() {
	case "held":
		*vote = confirmed
		if r.token != 0 && r.token != r.proposal {
			*vote = stored
		}
		a.node.readClock(a, 3)
	case "ours":
		candidate, ok := a.token()
		if !ok {
			r.refuse(vote)
			break
		}
		*vote = stored
		if r.token == 0 {
			r.candidate = max(r.candidate, candidate)
		}
		a.node.readClock(a, 3)
	case "taken":
		*vote = taken
		if len(a.reply) < 5 {
			break
		}
		r.owners[redisnode.Text(a.reply[3])]++
		left := time.Duration(redisnode.Number(a.reply[4])) * time.Millisecond
		if len(a.reply) > 5 && redisnode.Text(a.reply[5]) == "turn" {
			left = max(left, time.Second) // others are before it; by then the lock is most likely taken, and this claim is told of its own turn
		}
		if left >= 0 { // else another program has set the key without an expiry
			r.left = min(r.left, left)
		}
	case "tombstoned":
		*vote = tombstoned
	case "stale":
		*vote = unfit
	default:
		*vote = failed
		r.tally.add(a.err)
	}
}

// confirm is the second phase, for the nodes that are ready for it. There is none if a majority has accepted
// the proposal.
func (r *round) confirm() {
	switch majority := r.driver.majority; {
	case r.token != 0:
		r.sendToken(stored)
	case r.count(confirmed) >= majority:
		r.token = r.proposal
	case r.count(stored, confirmed) >= majority:
		r.token = r.candidate
		r.sendToken(stored, confirmed)
	}
}

// sendToken writes the token to nodes with one of these ballots.
func (r *round) sendToken(to ...ballot) {
	d, c := r.driver, r.claim
	var nodes []*node
	for i, v := range r.votes {
		for _, b := range to {
			if v == b {
				nodes = append(nodes, d.nodes[i])
			}
		}
	}
	for _, n := range nodes {
		r.votes[n.at] = confirming
	}
	r.waiting += len(nodes)
	token := r.token
	d.ask(nodes, d.majority, r.timeout, c.id, func(ctx context.Context, _ *node) *redisnode.Command {
		return confirmScript.Command(ctx, []string{c.lock, c.fence, c.waiters, c.queue}, c.id, r.number, token, c.channel)
	}, r.second)
}

func (r *round) takeSecond(a answer) {
	r.waiting--
	vote := &r.votes[a.node.at]
	token := int64(0)
	if a.err == nil {
		var ok bool
		if token, ok = a.token(); !ok {
			r.refuse(vote)
			return
		}
	}
	switch a.word() {
	case "held":
		if token == r.token {
			*vote = confirmed
		}
	case "lost":
		*vote = unfit
	case "higher": // by a claim that did not win, or whose majority did not answer
		if token < r.token {
			return // the greater token is in flight
		}
		r.raises++
		if r.raises > maxRaises {
			*vote = unfit
			return
		}
		r.token = token + 1
		r.sendToken(stored, confirming, confirmed)
	default:
		*vote = failed
		r.tally.add(a.err)
		r.tally.ambiguous = true // whatever became of the token, the claim was stored
	}
}

// refuse records that the greatest token on a node is none: no claim can get a greater one there. The node has stored the claim.
func (r *round) refuse(vote *ballot) {
	*vote, r.tally.ambiguous = failed, true
	r.tally.add(driver.Classify(fmt.Errorf("%w: the greatest token of the lock, under %q, is out of range: delete it", ErrNotALock, r.claim.fence), driver.Fatal))
}

// takeBack removes what a lost round has stored, also from nodes that did not answer, because they
// may have stored it. Data of a later round stays.
func (r *round) takeBack() {
	for i, v := range r.votes {
		if v == pending || v == failed || v >= stored {
			r.takeBackFrom(r.driver.nodes[i])
		}
	}
}

func (r *round) takeBackFrom(n *node) {
	names := r.claim.names
	if r.token == r.proposal || r.token == 0 {
		names.channel = "" // no node has published that the claim has the lock
	}
	n.leave(leftover{names: names, id: r.claim.id, round: r.number, by: time.Now().Add(r.ttl + r.timeout)})
}

// drain handles the nodes that answer after the outcome was certain.
func (r *round) drain(won bool) {
	for r.waiting > 0 {
		select {
		case a := <-r.first:
			r.takeFirst(a)
			switch {
			case a.word() != "ours" && a.word() != "held": // it has not stored the claim
			case won && r.isWanted():
				r.sendToken(stored)
			default:
				r.takeBackFrom(a.node)
			}
		case a := <-r.second:
			if a.word() == "higher" { // the token is certain now, or of no use
				r.waiting--
				r.votes[a.node.at] = unfit
				break
			}
			r.takeSecond(a)
		}
	}
	if won {
		r.fill()
	}
}

// isWanted reports whether the claim is held and so should be on all nodes.
func (r *round) isWanted() bool {
	d := r.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.claim.phase == driver.Held && !d.closed
}

// fill tries once more to store the lock on all nodes. The next renewal does the same.
func (r *round) fill() {
	var missing []*node
	for i, v := range r.votes {
		if v != confirmed && v != tombstoned {
			missing = append(missing, r.driver.nodes[i])
		}
	}
	r.driver.fill(r.claim, missing)
}
