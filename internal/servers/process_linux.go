package servers

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// childAttr puts the child into its own process group, so that an interrupt
// from the terminal reaches only the parent, and has the kernel kill it when
// the thread that forked it ends; see launch.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until the main thread is stopped: kill(2) returns before
// a thread that is running on another CPU has taken the signal.
func awaitStopped(pid int, bound time.Duration) error {
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch state := processState(pid); state {
		case 'T', 't':
			return nil
		case 0, 'Z', 'X':
			return os.ErrProcessDone
		}
	}
	return fmt.Errorf("pid %d is not stopped after %v", pid, bound)
}

// processState is the state letter that the kernel shows for pid, 0 if there
// is no such process.
func processState(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name before the state is in parentheses and may contain anything.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return 0
	}
	return stat[i+2]
}
