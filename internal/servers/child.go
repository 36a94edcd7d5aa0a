package servers

import (
	"fmt"
	"os/exec"
)

// A Child is a command whose whole process group ends with it, and which on Linux ends
// with this process, however that ends.
type Child struct{ life *run }

// StartChild starts cmd, which must not have attributes of its own. Nobody else may wait
// for it.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	cmd.SysProcAttr = childAttr()
	life, err := launch(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return &Child{life}, nil
}

// Pid is the process id, also after the end.
func (c *Child) Pid() int { return c.life.cmd.Process.Pid }

// Wait waits for the end of the command and of what it left in its group.
func (c *Child) Wait() error {
	<-c.life.done
	return c.life.err
}

// Kill ends the command and its group with SIGKILL, and waits for that. It is no error if
// it has ended already.
func (c *Child) Kill() {
	_ = c.life.cmd.Process.Kill() // an error means that it has ended
	<-c.life.done
}
