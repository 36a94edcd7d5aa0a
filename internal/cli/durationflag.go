package cli

import (
	"strconv"
	"time"
)

// A durationFlag is a flag for a duration. A number without a unit means seconds, as with flock and
// timeout.
type durationFlag time.Duration

func newDuration(to *time.Duration, value time.Duration) *durationFlag {
	*to = value
	return (*durationFlag)(to)
}

// Set implements pflag.Value.
func (s *durationFlag) Set(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		text = strconv.FormatFloat(n, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(text)
	*s = durationFlag(d)
	return err
}

func (s *durationFlag) String() string {
	if *s == 0 {
		return "0" // which help does not show as a default
	}
	return time.Duration(*s).String()
}

// Type implements pflag.Value.
func (*durationFlag) Type() string { return "duration" }
