package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// When a claim tries again by itself: when the holder's lease has ended; after a short random time
// that grows with each try, if no contender had a majority; at a low rate if no message about the
// lock arrives. It does not depend on how long its place lasts.
func TestPauseAfterALostRound(t *testing.T) {
	const ms = time.Millisecond
	held, forever, split := outcome{left: 100 * ms}, outcome{left: farAway}, outcome{split: true}
	for _, tt := range []struct {
		name           string
		out            outcome
		tries, unheard int // before the round
		least, most    time.Duration
		notSoon        time.Duration // until then no other round; -1: for the whole pause
		wantTries      int
	}{
		{"held", held, 3, 0, 102 * ms, 134 * ms, 0, 0},
		{"held and not heard of", held, 0, quietAfter, 102 * ms, 134 * ms, 0, 0},
		{"held forever", forever, 3, 0, 750 * ms, time.Second, 0, 0},
		{"held forever, not yet quiet", forever, 0, quietAfter - 1, 750 * ms, time.Second, 0, 0},
		{"held forever and not heard of", forever, 0, quietAfter, 750 * ms, time.Second, quietPause, 0},
		{"split", split, 0, 0, 2 * ms, 18 * ms, -1, 1},
		{"split once more", split, 1, 0, 4 * ms, 36 * ms, -1, 2},
		{"split many times", split, 5, 0, 16 * ms, 144 * ms, -1, 6},
		{"split for long", split, quietAfter, 0, 125 * ms, time.Second, -1, quietAfter + 1},
		{"split, not yet quiet", split, 0, quietAfter - 1, 2 * ms, 18 * ms, -1, 1},
		{"split and not heard of", split, 0, quietAfter, quietPause, quietPause, -1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &redDriver{}
				d.pace.add(8 * ms)
				for i := range 50 {
					c := &claim{ttl: time.Minute, phase: driver.Queued, tries: tt.tries, unheard: tt.unheard}
					if i%2 == 1 {
						c.ttl, c.queueTTL = time.Hour, time.Hour
					}
					pause := d.pauseAfter(c, tt.out)
					if pause < tt.least || pause > tt.most {
						t.Fatalf("a pause of %v, want from %v to %v; the place lasts %v", pause, tt.least, tt.most, c.heartbeat(c.ttl))
					}
					want := tt.notSoon
					if want < 0 {
						want = pause
					}
					if got := max(time.Until(c.notSoon), 0); got != want {
						t.Fatalf("no other round for %v, want %v", got, want)
					}
					if c.tries != tt.wantTries || c.unheard != tt.unheard+1 {
						t.Fatalf("tries %d and unheard %d, want %d and %d", c.tries, c.unheard, tt.wantTries, tt.unheard+1)
					}
				}
			})
		})
	}
}

// A waiter looks again in time, however long its place lasts.
func TestRecheckOfALongPlace(t *testing.T) {
	c := &claim{ttl: time.Hour, queueTTL: time.Hour, phase: driver.Queued}
	sent := time.Now()
	st := (&redDriver{}).queued(&waitQueue{waiting: []*claim{c}}, c, sent, farAway)
	if st.Recheck != time.Second || !st.Until.Equal(sent.Add(time.Hour)) {
		t.Errorf("again after %v, until %v later", st.Recheck, st.Until.Sub(sent))
	}
}
