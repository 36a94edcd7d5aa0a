//go:build unix

package judge

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// ownGroup has a command run in a process group of its own, and end with us where the system
// offers that.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// killGroup ends the process group of a command, also after the command has ended. A group
// keeps its number as long as it has a member; without members the call fails.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// killMarked ends the processes that inherited an environment variable: servers have groups
// of their own. Where there is no /proc they are left to the parent-death signal.
func killMarked(variable string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // another user's, or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && bytes.Contains(append([]byte{0}, environ...), fmt.Appendf(nil, "\x00%s\x00", variable)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
