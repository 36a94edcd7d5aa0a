//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestShow(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		out, _, code := dlock(t, backend, "show", "k")
		if code != 0 || out != "k is free\n" {
			t.Errorf("exit %d, %q", code, out)
		}
		if s := seen(t, backend, "k"); s.Holders == nil || s.Queue == nil || s.Token != 0 {
			t.Errorf("free: %+v", s)
		}
		ann, token := holds(t, backend, "ann", "k")
		users := []string{"ann"}
		if name != "file" {
			for i, user := range []string{"bob", "eve"} {
				waits(t, backend, user, "k", i+1)
				users = append(users, user)
			}
		}
		out, _, _ = dlock(t, backend, "show", "k")
		contains(t, out, fmt.Sprintf("k  exclusive  TOKEN %d\n", token), fmt.Sprintf("pid %d (sh)", ann.Process.Pid))
		at := 0
		for _, user := range users {
			i := strings.Index(out, user+"@")
			if i < at {
				t.Errorf("%s is not in its place:\n%s", user, out)
			}
			at = i
		}
		checkQueue(t, seen(t, backend, "k"), users, name != "file")
	})
}

func checkQueue(t *testing.T, s shown, users []string, leases bool) {
	t.Helper()
	if len(s.Holders) != 1 || s.Holders[0].Owner != users[0] || s.Holders[0].Token != s.Token || s.Holders[0].Waiting != nil {
		t.Errorf("%+v", s)
	}
	if len(s.Queue) != len(users)-1 || (s.Waiters != nil) != leases {
		t.Errorf("%+v", s)
	}
	for i, q := range s.Queue {
		if q.Owner != users[i+1] || q.Token != 0 || q.Waiting == nil || q.Held != nil || q.Left == nil {
			t.Errorf("place %d: %+v", i+1, q)
		}
	}
}
