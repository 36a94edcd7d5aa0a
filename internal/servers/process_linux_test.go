package servers_test

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// gone reports whether a process has ended. A process whose parent died may stay in the table as a
// zombie, because no process waits for it.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

func TestNoProcessRemains(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*servers.Redis) error{
		"stop": (*servers.Redis).Stop,
		"kill": (*servers.Redis).Kill,
		"stop paused": func(r *servers.Redis) error {
			if err := r.Pause(); err != nil {
				return err
			}
			return r.Stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testenv.Redis(t)
			pid := r.Pid()
			if gone(pid) {
				t.Fatal("it was never there")
			}
			check(t, end(r))
			if !gone(pid) || r.Running() {
				t.Error("the process remains")
			}
			check(t, r.Stop())
		})
	}
}

func TestForksEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	p := shell(t, "sleep 300 & echo fork $! there; wait")
	fork, err := strconv.Atoi(strings.Fields(awaitLog(t, p, "there"))[1])
	check(t, err)
	check(t, p.Kill())
	testenv.Eventually(t, patience, "the fork is gone", func() bool { return gone(fork) })
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	testenv.Redis(t) // skip here where there is none
	parent := exec.CommandContext(within(t, patience), os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"=1", "TMPDIR="+t.TempDir())
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	check(t, err)
	check(t, parent.Start())
	line, readErr := bufio.NewReader(out).ReadString('\n')
	check(t, parent.Process.Kill())
	_ = parent.Wait() // it was killed, and says so
	check(t, readErr)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	check(t, err)
	testenv.Eventually(t, patience, "the server is gone", func() bool { return gone(pid) })
}

// The kernel ties the parent-death signal to the thread that forked. The server must survive the end
// of every thread, but not the end of the process.
func TestServerOutlivesThreads(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t)
	for range 50 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			burnThread()
		}()
		<-done
	}
	client := clientOf(t, r)
	check(t, client.Ping(t.Context()).Err())
}

// burnThread ends the thread that it runs on: the runtime discards the thread of a goroutine that
// ends without unlocking it.
func burnThread() { runtime.LockOSThread() }

func TestChildrenEndWithTheirCommand(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(within(t, patience), "/bin/sh", "-c", "sleep 300 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	check(t, err)
	child := testenv.Child(t, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	check(t, err)
	fork, err := strconv.Atoi(strings.TrimSpace(line))
	check(t, err)
	child.Kill()
	child.Kill() // once is enough
	if child.Wait() == nil || !gone(child.Pid()) {
		t.Error("the command was not killed")
	}
	testenv.Eventually(t, patience, "its child is gone", func() bool { return gone(fork) })
	if _, err := servers.StartChild(exec.Command("no/such/binary")); err == nil {
		t.Error("it started")
	}
}
