//go:build !unix

package servers

import (
	"os"
	"syscall"
	"time"
)

// A missingSignal is a signal that this system cannot send: Process.Signal refuses it.
type missingSignal string

func (s missingSignal) Signal()        {}
func (s missingSignal) String() string { return string(s) }

var (
	sigStop os.Signal = missingSignal("SIGSTOP")
	sigCont os.Signal = missingSignal("SIGCONT")
)

func childAttr() *syscall.SysProcAttr       { return nil }
func runAs(*syscall.SysProcAttr, uint32)    {}
func killGroup(int)                         {}
func awaitStopped(int, time.Duration) error { return nil }
