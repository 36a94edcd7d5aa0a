package cli

import (
	"io"
	"time"
)

const guardianCommand = "__guardian"

// A guardian does not exist here: the job object of the command kills it with us. A dlock that a
// debugger has stopped does not end the command.
type guardian struct{}

func callGuardian(int, time.Time) (*guardian, error) { return nil, nil }

func (*guardian) alive() bool { return true }

func (*guardian) whenEnded() <-chan struct{} { return nil }

func (*guardian) expect(time.Time) {}

func (*guardian) dismiss() (gone func()) { return func() {} }

func guard(io.Reader, []string) int { return ExitUsage }
