package hazardtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// DeadLinkIsLostInTime lets the link die after locks were acquired or renewed: the loss is reported
// before the lease ends on the servers, and not long before.
func DeadLinkIsLostInTime(t *testing.T, open Open) {
	t.Parallel()
	s := &scene{t: t} // each trial has its own servers
	s.untilShown(testenv.UnderStress(1, 10), func(int) bool {
		d := &deadLink{scene: begin(t, open), metronome: testenv.StartMetronome(t)}
		return d.run()
	})
}

const (
	linkTTL    = 6 * time.Second
	minJudged  = 10 // of twenty locks: on a slow machine, the renewal of one or another is always under way
	minOfAKind = 4  // of those that were only acquired, and of those that were renewed
	spareLocks = 2  // more of each kind, which may be renewed just before the link dies
)

// A deadLink is one trial of DeadLinkIsLostInTime.
type deadLink struct {
	*scene
	metronome *testenv.Metronome
	locks     []*linkedLock
}

// A linkedLock is a lock whose link dies.
type linkedLock struct {
	*dlock.Guard
	lost     <-chan time.Time
	acquired time.Time // when the call was sent that acquired it
	sent     time.Time // when the last call was sent that its lease counts from
	isQuiet  bool      // no renewal is under way, and the machine did not stall when the last one was sent
}

// isRenewed: on several servers, the last call of an acquire may be sent after it has returned.
func (l *linkedLock) isRenewed() bool { return l.sent.Sub(l.acquired) > linkTTL/6 }

// run shows nothing if too few locks were quiet when the link died.
func (d *deadLink) run() (shown bool) {
	d.acquireAll()
	testenv.Eventually(d.t, patience, "enough locks are quiet", func() bool {
		fresh := d.look()
		return d.areEnough(spareLocks) || fresh < minOfAKind+spareLocks // there will not be more of them
	})
	d.BlackHole(true)
	defer d.Heal()
	for _, l := range d.locks {
		sent, isQuiet := d.Renewed(d.t, l.Key())
		l.isQuiet = l.isQuiet && isQuiet && sent.Equal(l.sent) // else a renewal came before the link died
	}
	acquired, renewed := d.judged()
	d.t.Logf("of the quiet locks, %d were acquired lately, and %d renewed", acquired, renewed)
	if !d.areEnough(0) {
		return false
	}
	for _, l := range d.locks {
		d.judge(l)
	}
	return true
}

// acquireAll acquires twenty locks, half of which have been renewed when it returns. It acquires one after the other: a lease
// counts from before its Client connects, which takes long if all do so at once.
func (d *deadLink) acquireAll() {
	const holders = 20
	for i := range holders {
		if i == holders/2 {
			elapse(linkTTL)
		}
		g := acquire(d.t, d.proxied(dlock.Config{DefaultTTL: linkTTL}), fmt.Sprintf("k%d", i))
		sent, _ := d.Renewed(d.t, g.Key()) // the first time, this may ask the server: not when the link is about to die
		d.locks = append(d.locks, &linkedLock{Guard: g, lost: d.watchLoss(g), acquired: sent})
	}
}

// look updates what is known of the locks. It returns how many have not been renewed yet.
func (d *deadLink) look() (fresh int) {
	for _, l := range d.locks {
		l.sent, l.isQuiet = d.Renewed(d.t, l.Key())
		since := time.Since(l.sent)
		isAnswered := since > 30*time.Millisecond+d.metronome.Lost(l.sent)
		isDue := since > linkTTL/3-100*time.Millisecond
		l.isQuiet = l.isQuiet && isAnswered && !isDue && d.delay(l) < linkTTL/12
		if !l.isRenewed() {
			fresh++
		}
	}
	return fresh
}

// delay is by how much the last renewal of a lock may have been stamped late.
func (d *deadLink) delay(l *linkedLock) time.Duration {
	return d.metronome.LostBetween(l.sent.Add(-linkTTL/20), l.sent.Add(20*time.Millisecond))
}

// judged counts the quiet locks, by what their leases count from.
func (d *deadLink) judged() (acquired, renewed int) {
	for _, l := range d.locks {
		switch {
		case !l.isQuiet:
		case l.isRenewed():
			renewed++
		default:
			acquired++
		}
	}
	return acquired, renewed
}

// areEnough reports whether enough locks of each kind are quiet, and so many more.
func (d *deadLink) areEnough(spare int) bool {
	acquired, renewed := d.judged()
	return min(acquired, renewed) >= minOfAKind+spare && acquired+renewed >= minJudged
}

// judge waits for the loss of a lock. If the lock was quiet when the link died, it asserts when the loss was reported.
func (d *deadLink) judge(l *linkedLock) {
	t := d.t
	t.Helper()
	var lost time.Time
	select {
	case lost = <-l.lost:
	case <-time.After(beforeLease):
		t.Fatalf("the loss of %q is not reported", l.Key())
	}
	expect(t, context.Cause(l.Context()), dlock.ErrOwnershipLost)
	if l.Remaining() != 0 {
		t.Error("a lost guard has time remaining")
	}
	if !l.isQuiet {
		return
	}
	early := linkTTL - linkTTL/20 - d.Traits().EarlyLoss - d.delay(l)
	late := d.metronome.LostBetween(l.sent.Add(early), lost) // not what the machine took after the loss
	if after := lost.Sub(l.sent); after > linkTTL+late || after < early {
		t.Errorf("lost %v after the last renewal, want %v to %v and %v for stalls", after, early, linkTTL, late)
	}
	token := d.token(l.Key())
	if token != l.Token() && time.Since(l.sent) < linkTTL { // looking takes time, too
		t.Errorf("the servers have token %d, the guard had %d", token, l.Token())
	}
	if sent, _ := d.Renewed(t, l.Key()); !sent.Equal(l.sent) {
		t.Error("a renewal was answered: the link was not dead")
	}
}

// watchLoss reports when the ownership of a guard ends. The metronome is asked just before: a stall that delayed the loss is
// recorded as one that ended by then.
func (d *deadLink) watchLoss(g *dlock.Guard) <-chan time.Time {
	at := make(chan time.Time, 1)
	context.AfterFunc(g.Context(), func() {
		d.metronome.Lost(time.Now())
		at <- time.Now()
	})
	return at
}
