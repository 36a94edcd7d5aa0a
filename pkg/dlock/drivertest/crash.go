package drivertest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	childKey = "DRIVERTEST_CHILD_KEY"
	childTTL = "DRIVERTEST_CHILD_TTL"
)

// IsChild reports whether this process was started to run Child.
func IsChild() bool { return os.Getenv(childKey) != "" }

// Child is the main function of a process that takes a lock and is then killed. Call it from
// TestMain if IsChild, with a driver for the store that the environment, as set by Harness.Child,
// names.
func Child(d driver.Driver) {
	ttl, err := time.ParseDuration(os.Getenv(childTTL))
	if err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	st, err := d.Acquire(context.Background(), driver.Request{
		Ref: driver.Ref{Key: os.Getenv(childKey), ID: newID(), TTL: ttl}, Wait: true,
	})
	fmt.Println(st.Phase, err)
	select {} // until it is killed
}

// crash: the lock of a killed process becomes free by itself, after its lease or, without a lease,
// at once.
func crash(s *suite) {
	if s.Child == nil {
		if s.Caps.Remote || !s.Caps.Lease {
			s.Fatal("a store that outlives its processes needs Harness.Child")
		}
		return // the store dies with the process
	}
	d := s.open()
	cmd := s.Child(s.T)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, childKey+"=k", childTTL+"="+s.TTL.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	killed := time.Now()
	s.submit(d, request(s.ref("k")), driver.Gone)
	if kerr := cmd.Process.Kill(); kerr != nil {
		s.Error(kerr)
	}
	_ = cmd.Wait() // it was killed: that is its error
	if err != nil || line != "held <nil>\n" {
		s.Fatalf("the child said %q, %v", line, err)
	}
	s.takes(d, "k", s.TTL+s.Slack)
	if took := time.Since(killed); !s.Caps.Lease && took > s.Slack {
		s.Errorf("without a lease the lock was free only after %v", took)
	}
}
