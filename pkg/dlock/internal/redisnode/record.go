package redisnode

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Holder reads "<id> <token> <since> <channel> <info>". A plain client's value has another form,
// and is returned as a holder without details.
func Holder(value string, now int64, left time.Duration) driver.Claim {
	c := driver.Claim{Phase: driver.Held, Remaining: max(left, 0)}
	part := strings.SplitN(value, " ", 5)
	if len(part) != 5 || len(part[0]) != 32 {
		return c
	}
	c.ID, c.Info = part[0], DecodeInfo(part[4])
	c.Token, _ = strconv.ParseInt(part[1], 10, 64)
	c.Age = since(part[2], now)
	return c
}

// Waiter reads "<deadline us> <since> <tokens> <channel> <info>".
func Waiter(id, record string, now int64) driver.Claim {
	c := driver.Claim{ID: id, Phase: driver.Queued}
	part := strings.SplitN(record, " ", 5)
	if len(part) != 5 {
		return c
	}
	deadline, _ := strconv.ParseInt(part[0], 10, 64)
	c.Remaining = time.Duration(deadline-now) * time.Microsecond
	c.Age, c.Info = since(part[1], now), DecodeInfo(part[4])
	return c
}

// since reads seconds and microseconds with a dot between.
func since(at string, now int64) time.Duration {
	seconds, micros, _ := strings.Cut(at, ".")
	s, _ := strconv.ParseInt(seconds, 10, 64)
	us, _ := strconv.ParseInt(micros, 10, 64)
	return max(time.Duration(now-s*1_000_000-us)*time.Microsecond, 0)
}

// IsOurs reports whether a value begins as this library's values do.
func IsOurs(value string) bool {
	if len(value) < 34 || !strings.ContainsRune(" .+", rune(value[32])) {
		return false
	}
	return strings.Trim(value[:32], "0123456789abcdef") == ""
}

// info is the short stored form of a driver.Info.
type info struct {
	Owner   string `json:"o,omitempty"`
	Host    string `json:"h,omitempty"`
	PID     int    `json:"p,omitempty"`
	Purpose string `json:"w,omitempty"`
	Trace   string `json:"t,omitempty"`
	Both    bool   `json:"b,omitempty"`
}

// An InfoText encodes an Info for storage. It remembers the last one, because a process usually
// submits the same one.
type InfoText struct {
	Before string // precedes the JSON
	last   atomic.Pointer[encodedInfo]
}

// Encode returns JSON.
func (t *InfoText) Encode(i driver.Info) string {
	if last := t.last.Load(); last != nil && last.info == i {
		return last.text
	}
	raw, err := json.Marshal(info(i))
	if err != nil {
		return t.Before + "{}" // strings and a number always marshal
	}
	text := t.Before + string(raw)
	t.last.Store(&encodedInfo{i, text})
	return text
}

type encodedInfo struct {
	info driver.Info
	text string
}

// DecodeInfo reads what Encode returned. It returns the zero Info for any other text.
func DecodeInfo(raw string) driver.Info {
	var i info
	if err := json.Unmarshal([]byte(raw), &i); err != nil {
		return driver.Info{}
	}
	return driver.Info(i)
}
