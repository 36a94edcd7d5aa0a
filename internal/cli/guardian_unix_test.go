//go:build unix

package cli

import (
	"bufio"
	"testing"
	"testing/synctest"
	"time"
)

// A guardian knows the time before it has begun. One that reads late, because it or we were stopped, does not add that time to the lock; nor
// does a clock that was set.
func TestGuardianGoesByTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, read := testGuardian(t, time.Now().Add(time.Hour))
		g.expect(time.Now().Add(5 * time.Second))
		first, line := read(), read()
		if left, err := remaining(first); left != time.Hour || err != nil {
			t.Errorf("%v, %v are left of an hour for a guardian that has just begun", left, err)
		}
		time.Sleep(2 * time.Second)
		if left, err := remaining(line); left != 3*time.Second || err != nil {
			t.Errorf("%v, %v are left of 5 s after 2 s", left, err)
		}
		time.Sleep(4 * time.Second)
		if left, err := remaining(line); left != -time.Second || err != nil {
			t.Errorf("%v, %v are left of 5 s after 6 s", left, err)
		}
	})
	const ahead = "5000000000 9000000000000000000" // as if the clock had been set back by many years
	if left, err := remaining(ahead); left != 5*time.Second || err != nil {
		t.Errorf("%v, %v are left of 5 s by another clock", left, err)
	}
	for _, bad := range []string{"", "5", "5 x", "soon 7"} {
		if left, err := remaining(bad); err == nil {
			t.Errorf("%q is read as %v", bad, left)
		}
	}
}

// testGuardian returns a guardian without a process, and what reads the lines that it is sent.
func testGuardian(t *testing.T, end time.Time) (*guardian, func() string) {
	t.Helper()
	g, in, err := newGuardian(end)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), g.pipe.Close() })
	lines := bufio.NewReader(in)
	return g, func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
}
