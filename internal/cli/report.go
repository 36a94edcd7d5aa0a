package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// An event is something that happened to a run.
type event struct {
	Time    time.Time  `json:"time"`
	What    string     `json:"event"`
	Key     string     `json:"key"`
	Token   int64      `json:"token,omitempty"`
	Holder  *holder    `json:"holder,omitempty"`
	Ahead   *int       `json:"ahead,omitempty"`
	Code    *int       `json:"code,omitempty"`
	Error   string     `json:"error,omitempty"`
	Waiting *time.Time `json:"waiting_since,omitempty"`
	Valid   float64    `json:"valid_for_seconds,omitempty"`
	Next    *float64   `json:"next_in_seconds,omitempty"`
	Last    *lastRun   `json:"last_run,omitempty"`
}

// A holder is who has a lock.
type holder struct {
	dlock.Info
	Seconds float64 `json:"held_for_seconds"`
}

// A reporter shows people, or programs, what happens to a run.
type reporter struct {
	key      string
	events   io.Writer
	screen   io.Writer // whose width counts; nothing is written there, because that may block
	asJSON   bool
	quiet    bool
	terminal bool
	patience time.Duration // before a wait is worth a word
}

func newReporter(r *run) reporter {
	rep := reporter{key: r.key, events: r.stderr, screen: r.stderr, asJSON: r.asJSON, quiet: r.quiet, terminal: isTerminal(r.stderr), patience: reportAfter}
	if rep.terminal {
		rep.patience = 200 * time.Millisecond
	}
	return rep
}

// loud are the events that are shown to people; the others are seen anyway.
var loud = map[string]string{
	"lost":           "the lock was lost while the command ran: %s",
	"cut-short":      "the lock was lost before --min-hold had passed: %s",
	"ending":         "ending the command: %s",
	"not-killed":     "the command goes on, because it cannot be killed: %s",
	"unguarded":      "no guardian ends the command if dlock is stopped: %s",
	"renewal-failed": "the lock could not be renewed: %s",
	"retrying":       "trying again: %s",
	"skipped":        "skipped: %s",
	"not-recorded":   "the run was not recorded: %s",
	"metrics-failed": "the metrics were not written: %s",
	"unconfirmed":    "the lock may stay until its TTL has passed: %s",
}

func (r *reporter) event(e event) {
	e.Error = unprefixed(e.Error)
	if r.asJSON {
		e.Time, e.Key = time.Now(), r.key
		_ = writeJSON(r.events, e) // standard error may be closed
		return
	}
	text, ok := loud[e.What]
	if !ok || r.quiet {
		return
	}
	line := fmt.Sprintf("dlock: "+text, e.Error)
	if e.Valid > 0 {
		line += "; the lock is valid for another " + age(time.Duration(e.Valid*float64(time.Second)))
	}
	fmt.Fprintln(r.events, safe(line))
}

// waits shows the wait until stop is called: a line that changes on a terminal,
// one line elsewhere.
func (r *reporter) waits(s *session, key string) (stop func()) {
	if r.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.watch(ctx, s, key) })
	return func() {
		cancel()
		done.Wait()
	}
}

func (r *reporter) watch(ctx context.Context, s *session, key string) {
	since := time.Now()
	t := time.NewTimer(r.patience)
	defer t.Stop()
	shown := false
	for {
		select {
		case <-ctx.Done():
			if shown && r.terminal && !r.asJSON {
				fmt.Fprint(r.events, clearLine)
			}
			return
		case <-t.C:
		}
		claims := s.inspect(ctx, key)
		if ctx.Err() != nil {
			continue
		}
		r.waiting(claims, since, s.knowsWaiters())
		shown = true
		if !r.terminal || r.asJSON {
			<-ctx.Done()
			return
		}
		t.Reset(time.Second)
	}
}

const clearLine = "\r\x1b[K"

// waiting shows the wait. Without knowsWaiters, nothing is said of how many are ahead.
func (r *reporter) waiting(claims []dlock.Claim, since time.Time, knowsWaiters bool) {
	who, ahead := inTheWay(claims)
	if r.asJSON {
		e := event{What: "waiting", Waiting: &since}
		if who != nil {
			e.Holder = &holder{who.Info, who.Age.Seconds()}
		}
		if who != nil && knowsWaiters {
			e.Ahead = &ahead
		}
		r.event(e)
		return
	}
	end := ""
	if ahead > 0 {
		end = fmt.Sprintf(", %d ahead", ahead)
	}
	if r.terminal {
		end += " [" + age(time.Since(since)) + "]"
		fmt.Fprint(r.events, clearLine+waitLine(r.key, who, end, width(r.screen)-1))
		return
	}
	fmt.Fprintln(r.events, waitLine(r.key, who, end, math.MaxInt))
}

// waitLine says what is waited for, in so many columns: if they are few, without the purpose, and with the key and the
// holder shortened, so that the times and the queue remain. If they are very few, the holder is left out.
func waitLine(key string, who *dlock.Claim, end string, columns int) string {
	line := fmt.Sprintf("dlock: waiting for %q", key)
	if who == nil {
		return cut(line+end, columns)
	}
	held := " for " + age(who.Age) + end
	line += ", held by " + safe(lockreader.Describe(who.Info)) + held
	if columnsOf(line) <= columns {
		return line
	}
	info := who.Info
	info.Purpose = ""
	key, owner := safe(key), safe(lockreader.Describe(info))
	room := columns - columnsOf("dlock: , held by "+held)
	if room < leastWidth { // for the key alone
		return cut("dlock: "+cutMiddle(key, max(columns-columnsOf("dlock: "+end), 1))+end, columns)
	}
	forKey := max(min(columnsOf(key), room/3), room-columnsOf(owner), 1)
	return cut("dlock: "+cutMiddle(key, forKey)+", held by "+cutMiddle(owner, max(room-forKey, 1))+held, columns)
}

// isOwn reports whether a claim is one of this process.
func isOwn(c *dlock.Claim) bool {
	host, _ := os.Hostname()
	return c.Info.PID == os.Getpid() && c.Info.Host == host
}

// inTheWay is a holder, and how many wait before us.
func inTheWay(claims []dlock.Claim) (who *dlock.Claim, ahead int) {
	for i := range claims {
		c := &claims[i]
		own := isOwn(c)
		switch {
		case c.Phase == dlock.PhaseHeld && own: // it is stored, and not confirmed yet
		case c.Phase == dlock.PhaseHeld && who == nil:
			who = c
		case c.Phase == dlock.PhaseQueued && own:
			return who, ahead
		case c.Phase == dlock.PhaseQueued:
			ahead++
		}
	}
	return who, 0
}

// age is a duration for people: two figures are enough.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 24*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// cut shortens a line to n columns.
func cut(line string, n int) string {
	if runes := []rune(line); n > 1 && len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return line
}
