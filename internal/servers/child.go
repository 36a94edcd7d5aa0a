package servers

import (
	"fmt"
	"os/exec"
)

// A Child is a command whose whole process group ends with it. On Linux it also ends with this
// process, however that ends.
type Child struct{ run *run }

// StartChild starts cmd, which must not have process attributes. Only the Child may wait for it.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	cmd.SysProcAttr = childAttr()
	run, err := launch(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return &Child{run}, nil
}

// Pid returns the process ID, also after the end.
func (c *Child) Pid() int { return c.run.cmd.Process.Pid }

// Wait waits for the end of the command and of the other processes in its group.
func (c *Child) Wait() error {
	<-c.run.done
	return c.run.err
}

// Kill ends the command and its group with SIGKILL, and waits for that. A command that has already
// ended is not an error.
func (c *Child) Kill() {
	_ = c.run.cmd.Process.Kill() // an error means that it has ended
	<-c.run.done
}
