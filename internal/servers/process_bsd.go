//go:build unix && !linux

package servers

import (
	"syscall"
	"time"
)

// childAttr puts the child into its own process group, so that an interrupt from the terminal
// reaches only the parent. There is no parent-death signal here: a parent that is killed leaves its
// servers running.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitStopped relies on the signal: there is no portable way to check.
func awaitStopped(int, time.Duration) error { return nil }
