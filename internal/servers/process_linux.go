package servers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// childAttr puts the child into its own process group, so that an interrupt from the terminal
// reaches only the parent. It also makes the kernel kill the child when the thread that forked it
// ends; see launch.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until all threads are stopped: kill(2) returns before the threads that run on
// other CPUs have handled the signal.
func awaitStopped(pid int, timeout time.Duration) error {
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		states := threadStates(pid)
		if strings.Trim(states, "ZX") == "" {
			return os.ErrProcessDone
		}
		if strings.Trim(states, "Tt") == "" {
			return nil
		}
	}
	return fmt.Errorf("pid %d is not stopped after %v", pid, timeout)
}

// threadStates returns the state letters of the threads of pid, or none if there is no such
// process.
func threadStates(pid int) string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	var states []byte
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		// The name before the state is in parentheses and may contain anything.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
			states = append(states, stat[i+2])
		}
	}
	return string(states)
}
