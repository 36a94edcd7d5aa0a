package filelock

import (
	"bytes"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A record is the content of a file: two lines of figures, and a line of JSON for people. Lock
// files and slots have the same form.
type record struct {
	waited int64 // when the first waiter was last refused; all times are µs
	first  int64 // when the first waiter came
	fence  int64 // the last token that was given
	since  int64 // when the lock was taken from free
	mode   driver.Mode
	limit  int
}

// A holder is the third line.
type holder struct {
	Key   string `json:"key"`
	ID    string `json:"id,omitempty"`
	Token int64  `json:"token,omitempty"`
	driver.Info
}

const (
	magic = "dlock 1 "
	// markSize is the length of the first line. Waiters write it, and holders write the rest.
	markSize = len(magic) + 2*(timeDigits+1)
	// headSize is the length of the two lines of figures.
	headSize    = markSize + fenceDigits + 1 + timeDigits + 1 + 2 + countDigits + 1
	timeDigits  = 16 // until the year 2286
	fenceDigits = 19
	countDigits = 10
	mostFence   = 1 << 62
	// maxRecord limits how much of a file is read and written: another user may have made it as
	// large as they like. The engine's longest name and Info take 20 KiB.
	maxRecord = 32 << 10
	// maxName is the longest key with its prefix. As JSON it is up to six times as long.
	maxName = 4 << 10
)

// courtesy is how long a claim leaves a free lock to an earlier waiter. heeded is how long a waiter
// counts after it was last seen.
const (
	courtesy = 100 * time.Millisecond
	heeded   = time.Second
)

// awaited reports whether a claim that came before arrived waits for the lock: it was refused
// recently, while the last holder had the lock. A mark from the future was made before the clock
// was set back, and its waiter may be gone.
func (r *record) awaited(arrived int64, now time.Time) bool {
	return r.waited >= r.since && r.first < arrived && now.Sub(time.UnixMicro(r.waited)).Abs() < heeded
}

// begin makes r the record of a free lock that c takes.
func (r *record) begin(c *claim, now time.Time) {
	r.since, r.mode, r.limit = now.UnixMicro(), c.mode, c.limit
}

// next reserves n tokens and returns the first.
func (r *record) next(n int, now time.Time) int64 {
	token := max(r.fence+1, now.UnixMicro())
	r.fence = token + int64(max(n, 1)) - 1
	return token
}

// parse reads the lines of figures. An empty file is the zero record, and so is a file of zeros,
// which a power failure may leave. A single line is the mark of a waiter that came before the first
// holder.
func parse(b []byte) (record, error) {
	var r record
	b = bytes.TrimRight(b, "\x00")
	if len(b) == 0 {
		return r, nil
	}
	mark, ok := bytes.CutPrefix(b, []byte(magic))
	r.waited, mark = number(mark, timeDigits, ' ', &ok)
	r.first, mark = number(mark, timeDigits, '\n', &ok)
	if !ok || len(mark) == 0 {
		return r, notALock(ok)
	}
	var mode, limit int64
	r.fence, b = number(mark, fenceDigits, ' ', &ok)
	r.since, b = number(b, timeDigits, ' ', &ok)
	mode, b = number(b, 1, ' ', &ok)
	limit, _ = number(b, countDigits, '\n', &ok)
	r.mode, r.limit = driver.Mode(mode), int(limit)
	return r, notALock(ok && r.fence >= 0 && r.fence <= mostFence && r.mode <= driver.Permit)
}

func notALock(is bool) error {
	if is {
		return nil
	}
	return ErrNotALock
}

// number takes the digits of a number, and the byte that ends it, from b.
func number(b []byte, digits int, end byte, ok *bool) (n int64, rest []byte) {
	if !*ok || len(b) <= digits || b[digits] != end {
		*ok = false
		return 0, nil
	}
	for _, c := range b[:digits] {
		if c < '0' || c > '9' {
			*ok = false
			return 0, nil
		}
		n = 10*n + int64(c-'0')
	}
	return n, b[digits+1:]
}

// appendMark appends the first line.
func appendMark(b []byte, waited, first int64) []byte {
	b = append(b, magic...)
	b = appendNumber(b, waited, timeDigits, ' ')
	return appendNumber(b, first, timeDigits, '\n')
}

// appendTo appends the second line.
func (r *record) appendTo(b []byte) []byte {
	b = appendNumber(b, r.fence, fenceDigits, ' ')
	b = appendNumber(b, r.since, timeDigits, ' ')
	b = appendNumber(b, int64(r.mode), 1, ' ')
	return appendNumber(b, int64(r.limit), countDigits, '\n')
}

func appendNumber(b []byte, n int64, digits int, end byte) []byte {
	b = append(b, "0000000000000000000"[:digits]...)
	for i := len(b) - 1; n > 0 && i >= len(b)-digits; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return append(b, end)
}

// appendHolder appends the third line. key and info are JSON.
func appendHolder(b, key []byte, id string, token int64, info []byte) []byte {
	b = append(b, `{"key":`...)
	b = append(b, key...)
	if id == "" {
		return append(b, "}\n"...)
	}
	b = append(b, `,"id":"`...)
	b = append(b, id...)
	b = append(b, `","token":`...)
	b = strconv.AppendInt(b, token, 10)
	if len(info) > len("{}") {
		b = append(b, ',')
		b = append(b, info[1:len(info)-1]...)
	}
	return append(b, "}\n"...)
}
