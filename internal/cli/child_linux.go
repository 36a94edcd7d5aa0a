package cli

import "syscall"

// dieWithParent has the kernel kill the command itself, and at once. The guardian
// does so for its children.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
