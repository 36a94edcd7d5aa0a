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

// parseState reads "<phase> <id> <token>", of a waiter followed by how many are before
// it and when to ask again. An answer about another claim is never taken for ours.
func parseState(reply any, r driver.Ref, sent time.Time) (driver.State, error) {
	text := redisnode.Text(reply)
	word, rest, _ := strings.Cut(text, " ")
	id, rest, _ := strings.Cut(rest, " ")
	phase, known := phases[word]
	if !known || id != r.ID {
		return driver.State{}, fmt.Errorf("%w: it is about another claim", ErrReply)
	}
	digits, rest, waits := strings.Cut(rest, " ")
	token, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return driver.State{}, fmt.Errorf("%w: token %q", ErrReply, digits)
	}
	st := driver.State{Phase: phase, Token: token}
	if waits {
		ahead, recheck, _ := strings.Cut(rest, " ")
		ms, _ := strconv.Atoi(recheck)
		st.Ahead, _ = strconv.Atoi(ahead)
		st.Recheck = time.Duration(ms) * time.Millisecond
	}
	if sent.IsZero() {
		return st, nil
	}
	switch phase {
	case driver.Held:
		st.Until = sent.Add(r.TTL)
	case driver.Queued:
		h := driver.Heartbeat(r.TTL)
		st.Until, st.Recheck = sent.Add(h), min(max(st.Recheck, 0), h/3)
	case driver.Gone, driver.Unknown:
	}
	return st, nil
}
