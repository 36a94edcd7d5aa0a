package redislock

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A view is what inspect.lua or look.lua returned.
type view struct {
	now              int64 // the server's time
	joint            bool  // readers or permits hold the lock
	holders, waiters []driver.Claim
	last             any // the fourth value of the reply
}

func readView(reply any) (v view, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) < 4 {
		return v, fmt.Errorf("%w: %T", ErrUnexpectedReply, reply)
	}
	v.last = list[3]
	v.now, err = strconv.ParseInt(redisnode.Text(list[0]), 10, 64)
	if err != nil {
		return v, fmt.Errorf("%w: time %q", ErrUnexpectedReply, redisnode.Text(list[0]))
	}
	held := redisnode.Text(list[1])
	value, isValue := strings.CutPrefix(held, "=")
	if isValue {
		v.holders = append(v.holders, readHolder(value, v.now, time.Duration(redisnode.Number(list[2]))*time.Millisecond))
	}
	var mode string
	mode, v.joint = strings.CutPrefix(held, "~")
	for i := 4; i+1 < len(list); i += 2 {
		v.add(redisnode.Text(list[i]), redisnode.Text(list[i+1]), mode)
	}
	return v, nil
}

// add adds a claim if its deadline is not over.
func (v *view) add(id, record, mode string) {
	deadline, record, isHolder := cutDeadline(record)
	if !isHolder {
		if c := readWaiter(id, record, v.now); c.Remaining > 0 {
			v.waiters = append(v.waiters, c)
		}
		return
	}
	c := readDetails(record, v.now)
	c.ID, c.Phase, c.Remaining = id, driver.Held, time.Duration(deadline-v.now)*time.Microsecond
	c.Mode, c.Limit = parseMode(mode)
	if c.Remaining > 0 {
		v.holders = append(v.holders, c)
	}
}

// cutDeadline reads "=<deadline us> ", which precedes the records of readers and permits.
func cutDeadline(text string) (deadline int64, record string, ok bool) {
	text, ok = strings.CutPrefix(text, "=")
	if !ok {
		return 0, text, false
	}
	digits, record, _ := strings.Cut(text, " ")
	at, _ := strconv.ParseFloat(digits, 64) // the server may print an exponent
	return int64(at), record, true
}

// readHolder reads "<id><mark> <token> <tokens> <channel> <info>". The value of a plain client has
// another form, and is returned as a holder without details.
func readHolder(value string, now int64, left time.Duration) driver.Claim {
	var c driver.Claim
	if redisnode.IsOurs(value) && value[32] != ' ' {
		c = readDetails(value[34:], now)
	}
	if c.Token != 0 {
		c.ID = value[:32]
	}
	c.Phase, c.Remaining = driver.Held, max(left, 0)
	return c
}

// readDetails reads "<token> <tokens> <channel> <info>". The token is the time of the grant, unless the
// clock was set back.
func readDetails(text string, now int64) (c driver.Claim) {
	part := strings.SplitN(text, " ", 4)
	if len(part) != 4 {
		return c
	}
	token, err := strconv.ParseInt(part[0], 10, 64)
	if err != nil || token <= 0 {
		return c // damaged; the age would be that of 1970
	}
	c.Token, c.Info = token, redisnode.DecodeInfo(part[3])
	c.Age = max(time.Duration(now-c.Token)*time.Microsecond, 0)
	tokens, _ := strconv.ParseInt(part[1], 10, 64)
	if tokens > 1 {
		c.LastToken = c.Token + tokens - 1
	}
	return c
}

// readWaiter reads "<deadline us> <since> <tokens><mode> <skipped> <channel> <info>".
func readWaiter(id, record string, now int64) driver.Claim {
	part := strings.SplitN(record, " ", 5)
	if len(part) != 5 {
		return driver.Claim{ID: id, Phase: driver.Queued}
	}
	c := redisnode.Waiter(id, strings.Join([]string{part[0], part[1], part[2], part[4]}, " "), now)
	c.Mode, c.Limit = parseMode(strings.TrimLeft(part[2], "0123456789"))
	return c
}

// parseMode is the inverse of modeText; an exclusive claim has no text.
func parseMode(text string) (driver.Mode, int) {
	limit, isPermit := strings.CutPrefix(text, "p")
	switch {
	case isPermit:
		n, _ := strconv.Atoi(limit)
		return driver.Permit, n
	case text == "s":
		return driver.Shared, 0
	}
	return driver.Exclusive, 0
}

// isMode reports whether the last member of a sorted set is the mode of a lock.
func isMode(last redis.Z) bool {
	text, _ := last.Member.(string)
	return math.IsInf(last.Score, 1) && modePattern.MatchString(text)
}

var modePattern = regexp.MustCompile(`^(s|p[0-9]+)$`)
