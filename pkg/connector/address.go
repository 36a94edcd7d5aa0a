package connector

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"time"
)

// checkAddr accepts host:port. Its error does not repeat the address, which may be a URL with a
// password.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ \t\r\n") {
		return errors.New("is not host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return errors.New("has no valid port")
	}
	return nil
}

// A span is a duration in a configuration; zero means its default.
type span struct {
	field string
	value time.Duration
}

// maxSpan is a year. Clients add to these durations, and the sum of a longer one could overflow: a
// negative timeout ends every call at once.
const maxSpan = 365 * 24 * time.Hour

func checkSpans(spans ...span) error {
	for _, s := range spans {
		switch {
		case s.value < 0:
			return invalid(s.field, "%v is negative", s.value)
		case s.value > 0 && s.value < time.Millisecond:
			return invalid(s.field, "%v is below 1ms", s.value) // a number without a unit
		case s.value > maxSpan:
			return invalid(s.field, "%v is above %v", s.value, maxSpan)
		}
	}
	return nil
}

func or(value, fallback time.Duration) time.Duration {
	if value == 0 {
		return fallback
	}
	return value
}
