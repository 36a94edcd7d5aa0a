package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The exit codes, in addition to that of the command that was run. Those from 64 to 76 are
// of sysexits.h, the last two those of a shell.
const (
	ExitFinding     = 1  // doctor has found something unsafe
	ExitUsage       = 64 // the arguments are wrong; nothing was done
	ExitBackend     = 69 // the backend cannot be reached, or refuses
	ExitOutput      = 74 // our output cannot be written
	ExitNotAcquired = 75 // another client has the lock
	ExitLost        = 76 // the lock was lost, and the command was ended for that, or not started
	ExitCannotRun   = 126
	ExitNotFound    = 127
	exitSignal      = 128 // plus the number of the signal
)

// An exit is an error with a code. Without a cause nothing is said.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

func exitWith(code int, format string, args ...any) error {
	return &exit{code, fmt.Errorf(format, args...)}
}

// codeOf is the code of an error; 0 if it has none.
func codeOf(err error) int {
	var e *exit
	if errors.As(err, &e) {
		return e.code
	}
	return 0
}

// isUsageExit reports whether an error is one of usage, and not a command that has exited with the same code.
func isUsageExit(err error) bool {
	var e *exit
	return errors.As(err, &e) && e.code == ExitUsage && e.err != nil
}

// usage is an error of whoever called the command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &exit{ExitUsage, fmt.Errorf(format+"\nTry: %s --help", append(args, cmd.CommandPath())...)}
}

// backendError gives an error of the lock client its code.
func backendError(err error) error {
	var already *exit
	var by signalled
	switch {
	case err == nil:
		return nil
	case errors.As(err, &already):
		return err
	case errors.Is(err, dlock.ErrLockHeldByOther):
		return &exit{ExitNotAcquired, err}
	case errors.Is(err, dlock.ErrOwnershipLost):
		return &exit{ExitLost, err}
	case errors.Is(err, context.Canceled) && errors.As(err, &by): // before the cause of a renewal that had failed
		return &exit{exitSignal + int(by.number()), nil}
	case isUsage(err):
		return &exit{ExitUsage, err}
	}
	return &exit{ExitBackend, err}
}

// isUsage reports whether asking otherwise would help.
func isUsage(err error) bool { return lockreader.IsUsage(err) }
