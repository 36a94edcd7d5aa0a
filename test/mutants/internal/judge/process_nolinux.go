//go:build unix && !linux

package judge

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
