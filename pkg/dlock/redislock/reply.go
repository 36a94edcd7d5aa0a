package redislock

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

var phases = map[string]driver.Phase{"queued": driver.Queued, "held": driver.Held, "gone": driver.Gone}

// An answer is what a script returns about one claim.
type answer struct {
	state        driver.State
	unsubscribed bool // queued, and the server counts no subscriber of the channel that the call named
	more         bool // released, and dead waiters are left to drop before the lock is granted
	retry        bool // nothing was stored: call again, because dead waiters are left to drop
}

// parseAnswer reads the value of a lock that the claim had until now, or "<phase> <id> <token>". For a
// waiter, the number of claims ahead, the recheck time and possibly "unsubscribed" follow; for a
// released claim, possibly "more". An answer about another claim is an error.
func parseAnswer(reply any, r driver.Ref, sent time.Time) (answer, error) {
	text := redisnode.Text(reply)
	if len(text) > len(r.ID)+2 && text[:len(r.ID)] == r.ID {
		return parseValue(text[len(r.ID)+2:])
	}
	word, rest, _ := strings.Cut(text, " ")
	id, rest, _ := strings.Cut(rest, " ")
	phase, known := phases[word]
	if (!known && word != "again" && word != "full") || id != r.ID {
		return answer{}, fmt.Errorf("%w: it is about another claim", ErrUnexpectedReply)
	}
	digits, rest, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("%w: token %q", ErrUnexpectedReply, digits)
	case word == "again":
		return answer{retry: true}, nil
	case word == "full":
		return answer{}, driver.Classify(fmt.Errorf("%w: %d claims wait", ErrQueueFull, number), driver.Transient)
	}
	a := answer{state: driver.State{Phase: phase, Token: number}, more: rest == "more"}
	if phase == driver.Queued {
		a.parseQueued(rest)
	}
	a.setUntil(r, sent)
	return a, nil
}

// parseValue reads what follows the ID and the mark in the value of a lock. Only a release is answered with it.
func parseValue(text string) (answer, error) {
	digits, _, _ := strings.Cut(text, " ")
	token, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return answer{}, fmt.Errorf("%w: token %q", ErrUnexpectedReply, digits)
	}
	return answer{state: driver.State{Phase: driver.Held, Token: token}}, nil
}

// parseQueued reads "<ahead> <recheck ms>" and possibly "unsubscribed".
func (a *answer) parseQueued(text string) {
	ahead, rest, _ := strings.Cut(text, " ")
	recheck, rest, _ := strings.Cut(rest, " ")
	ms, _ := strconv.Atoi(recheck)
	a.state.Ahead, _ = strconv.Atoi(ahead)
	a.state.Recheck = time.Duration(ms) * time.Millisecond
	a.unsubscribed = rest == "unsubscribed"
}

// heartbeat returns how long a claim lives in the queue without renewal. The scripts take a later deadline for
// one from before the clock was set back.
func heartbeat(r *driver.Ref) time.Duration { return min(r.Heartbeat(), driver.Heartbeat(r.TTL)) }

// setUntil computes the deadline from the time at which the request was sent.
func (a *answer) setUntil(r driver.Ref, sent time.Time) {
	if sent.IsZero() {
		return
	}
	switch a.state.Phase {
	case driver.Held:
		a.state.Until = sent.Add(r.TTL)
	case driver.Queued:
		h := heartbeat(&r)
		a.state.Until, a.state.Recheck = sent.Add(h), min(max(a.state.Recheck, 0), h/3)
	case driver.Gone, driver.Unknown:
	}
}
