package redislock

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

var phases = map[string]driver.Phase{"queued": driver.Queued, "held": driver.Held, "gone": driver.Gone}

// parseState reads {phase, id, token, ahead, recheck ms}; the last two may be
// missing. An answer about another claim is never taken for ours.
func parseState(reply any, r driver.Ref, sent time.Time) (driver.State, error) {
	list, ok := reply.([]any)
	if !ok || len(list) < 3 {
		return driver.State{}, fmt.Errorf("%w: %T of %d", ErrReply, reply, len(list))
	}
	phase, known := phases[redisnode.Text(list[0])]
	if !known || redisnode.Text(list[1]) != r.ID {
		return driver.State{}, fmt.Errorf("%w: it is about another claim", ErrReply)
	}
	token, err := strconv.ParseInt(redisnode.Text(list[2]), 10, 64)
	if err != nil {
		return driver.State{}, fmt.Errorf("%w: token %q", ErrReply, redisnode.Text(list[2]))
	}
	st := driver.State{Phase: phase, Token: token}
	if len(list) >= 5 {
		st.Ahead, st.Recheck = int(redisnode.Number(list[3])), time.Duration(redisnode.Number(list[4]))*time.Millisecond
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
