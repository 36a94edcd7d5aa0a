//go:build unix

package cli

import (
	"os"
	"syscall"
)

// passedOn are the signals that go to the command.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGCONT,
}

// shell runs a string.
var shell = []string{"sh", "-c"}
