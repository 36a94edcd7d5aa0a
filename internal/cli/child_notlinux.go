//go:build unix && !linux

package cli

import "syscall"

// dieWithParent does nothing: only the guardian ends the command with us.
func dieWithParent(*syscall.SysProcAttr) {}
