package hazardtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// childEndpoints tells a child process where the servers are.
const childEndpoints = "DLOCK_HAZARD_ENDPOINTS"

// IsChild reports whether this process was started by a scenario. TestMain calls Child then.
func IsChild() bool { return os.Getenv(childEndpoints) != "" }

// Child is a process with locks of its own, and does not return. It obeys the lines of its
// standard input until that ends: "wait KEY TTL", "hold KEY TTL", "rounds N SEED DIR", for which see
// SeveralKeysHaveNoDeadlock, and "write", by which it
// reports a write with the token of each lock that it has acquired, without asking whether it
// still holds them, and then how many of them are lost.
func Child(open func(endpoints []string) driver.Opener) {
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(open(strings.Split(os.Getenv(childEndpoints), ","))))
	if err != nil {
		panic(err)
	}
	var guards []*dlock.Guard
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var verb, key, text string
		_, _ = fmt.Sscan(in.Text(), &verb, &key, &text) // "write" is alone
		ttl, _ := time.ParseDuration(text)
		switch verb {
		case "wait":
			go func() { _, _ = c.Acquire(context.Background(), key, dlock.WithTTL(ttl)) }()
		case "hold":
			g, err := c.Acquire(context.Background(), key, dlock.WithTTL(ttl))
			if err != nil {
				panic(err)
			}
			guards = append(guards, g)
			fmt.Println("held", g.Token())
		case "rounds":
			var rounds int
			var seed uint64
			var dir string
			_, err := fmt.Sscan(in.Text(), &verb, &rounds, &seed, &dir)
			if err != nil {
				panic(err)
			}
			lockSeveral(c, rounds, seed, dir)
		case "write":
			reportWrites(guards)
			guards = nil
		}
	}
	os.Exit(0)
}

func reportWrites(guards []*dlock.Guard) {
	lost := 0
	for _, g := range guards {
		fmt.Println("write", g.Key(), g.Token())
	}
	for _, g := range guards {
		if g.Remaining() == 0 && isLost(g.Unlock(context.Background())) {
			lost++
		}
	}
	fmt.Println("lost", lost)
}

// A process is a Child, seen from the test.
type process struct {
	tb    testing.TB
	child *servers.Child
	in    io.Writer
	out   *bufio.Scanner
}

// startProcess starts a Child on the servers of a scene, which is killed when the test ends.
func (s *scene) startProcess() *process {
	s.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEndpoints+"="+strings.Join(s.Endpoints(), ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(s.t, err)
	out, childOut, err := os.Pipe()
	check(s.t, err)
	s.t.Cleanup(func() { _ = out.Close() })
	cmd.Stdout = childOut
	child := testenv.Child(s.t, cmd)
	check(s.t, childOut.Close())
	return &process{s.t, child, in, bufio.NewScanner(out)}
}

func (p *process) send(format string, args ...any) {
	p.tb.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	check(p.tb, err)
}

// read scans the next line, which must begin with this word.
func (p *process) read(word string, into ...any) {
	p.tb.Helper()
	if !p.out.Scan() || !strings.HasPrefix(p.out.Text(), word+" ") {
		p.tb.Fatalf("the child says %q, not %q: %v", p.out.Text(), word, p.out.Err())
	}
	_, err := fmt.Sscan(strings.TrimPrefix(p.out.Text(), word), into...)
	check(p.tb, err)
}

func (p *process) signal(sig syscall.Signal) {
	p.tb.Helper()
	child, err := os.FindProcess(p.child.Pid())
	check(p.tb, err)
	check(p.tb, child.Signal(sig))
}
