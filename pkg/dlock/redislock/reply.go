package redislock

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

var phases = map[string]driver.Phase{"queued": driver.Queued, "held": driver.Held, "gone": driver.Gone}

// parseState reads {phase, id, token, ahead, recheck ms}; the last two may be
// missing. An answer about another claim is never taken for ours.
func parseState(reply any, r driver.Ref, sent time.Time) (driver.State, error) {
	list, ok := reply.([]any)
	if !ok || len(list) < 3 {
		return driver.State{}, fmt.Errorf("%w: %T of %d", ErrReply, reply, len(list))
	}
	phase, known := phases[text(list[0])]
	if !known || text(list[1]) != r.ID {
		return driver.State{}, fmt.Errorf("%w: it is about another claim", ErrReply)
	}
	token, err := strconv.ParseInt(text(list[2]), 10, 64)
	if err != nil {
		return driver.State{}, fmt.Errorf("%w: token %q", ErrReply, text(list[2]))
	}
	st := driver.State{Phase: phase, Token: token}
	if len(list) >= 5 {
		st.Ahead, st.Recheck = int(number(list[3])), time.Duration(number(list[4]))*time.Millisecond
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

func text(v any) string {
	s, _ := v.(string)
	return s
}

func number(v any) int64 {
	n, _ := v.(int64)
	return n
}

// info is what is stored of a driver.Info, in short.
type info struct {
	Owner   string `json:"o,omitempty"`
	Host    string `json:"h,omitempty"`
	PID     int    `json:"p,omitempty"`
	Purpose string `json:"w,omitempty"`
	Trace   string `json:"t,omitempty"`
}

// encodeInfo remembers the last one: a process mostly files the same.
func (d *redisDriver) encodeInfo(i driver.Info) string {
	if last := d.lastInfo.Load(); last != nil && last.info == i {
		return last.text
	}
	raw, err := json.Marshal(info(i))
	if err != nil {
		return "{}" // strings and a number always marshal
	}
	d.lastInfo.Store(&encodedInfo{i, string(raw)})
	return string(raw)
}

type encodedInfo struct {
	info driver.Info
	text string
}

func decodeInfo(raw string) driver.Info {
	var i info
	if err := json.Unmarshal([]byte(raw), &i); err != nil {
		return driver.Info{}
	}
	return driver.Info(i)
}
