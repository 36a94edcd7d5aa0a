package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
)

// asService in the environment makes the test binary run as the program itself.
const asService = "EXAMPLE_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// Two processes take turns on the backend that one setting selects.
func TestTakingTurns(t *testing.T) {
	servers := []string{"GENESIS_REDIS_ADDR=" + testenv.Redis(t).Addr(), "GENESIS_ETCD_ENDPOINTS=" + testenv.Etcd(t).Endpoint()}
	for _, backend := range []string{"redis", "etcd"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"GENESIS_DLOCK_BACKEND=" + backend}, servers...)
			both := []*service{start(t, env, "-metrics", "127.0.0.1:0"), start(t, env)}
			testenv.Eventually(t, 2*time.Minute, "both take turns", func() bool {
				return changes(slices.Concat(both[0].turns(t), both[1].turns(t))) >= 4
			})
			if text := scrape(t, both[0]); !regexp.MustCompile(`(?m)^dlock_acquisitions_total\{.*backend="` + backend + `".*result="acquired"\} [1-9]`).MatchString(text) {
				t.Errorf("metrics are\n%s", text)
			}
			for _, s := range both {
				if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			var all []turn
			for _, s := range both {
				if err := s.wait(); err != nil {
					t.Errorf("%v: %s", err, s.log.String())
				}
				all = append(all, s.turns(t)...)
				for _, line := range []string{"service started", "lock acquired", "lock released", "service stopped"} {
					if !strings.Contains(s.log.String(), line) {
						t.Errorf("the log has no line %q:\n%s", line, s.log.String())
					}
				}
			}
			apart(t, all)
		})
	}
}

// apart asserts that turns do not overlap.
func apart(t *testing.T, all []turn) {
	t.Helper()
	inOrder(all)
	for i, now := range all[1:] {
		before := all[i]
		if now.begins.Before(before.ends) {
			t.Errorf("process %s began at %v, and process %s ended at %v", now.process, now.begins, before.process, before.ends)
		}
	}
}

func inOrder(all []turn) {
	slices.SortFunc(all, func(a, b turn) int { return a.begins.Compare(b.begins) })
}

// changes returns how often a turn follows one of the other process. One of them may have many turns before the other runs.
func changes(all []turn) (n int) {
	inOrder(all)
	for i := 1; i < len(all); i++ {
		if all[i].process != all[i-1].process {
			n++
		}
	}
	return n
}

func TestNoServer(t *testing.T) {
	s := start(t, []string{"GENESIS_REDIS_ADDR=localhost:1"})
	if err := s.wait(); err == nil || s.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(s.log.String(), "GENESIS_REDIS_ADDR") {
		t.Errorf("%v: %s", err, s.log.String())
	}
}

// A service is one process of the example.
type service struct {
	cmd      *exec.Cmd
	out, log output
}

func start(t *testing.T, env []string, args ...string) *service {
	t.Helper()
	s := &service{cmd: exec.Command(os.Args[0], append([]string{"-config", "service.yaml", "-work", "100ms"}, args...)...)}
	// No stall of the machine is as long as the lease.
	s.cmd.Env = slices.Concat(os.Environ(), env, []string{asService + "=1", "GENESIS_DLOCK_DEFAULT_TTL=1m"})
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	return s
}

// A turn is one critical section of a process.
type turn struct {
	process      string
	begins, ends time.Time
}

// wait waits until the service has ended. One that does not end is killed, which is an error.
func (s *service) wait() error {
	stuck := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer stuck.Stop()
	return s.cmd.Wait()
}

var lines = regexp.MustCompile(`(?m)^(\S+) process (\d+) begins\n(\S+) process \d+ ends$`)

// turns returns the turns that are complete.
func (s *service) turns(t *testing.T) (all []turn) {
	t.Helper()
	for _, m := range lines.FindAllStringSubmatch(s.out.String(), -1) {
		begins, err1 := time.Parse(time.RFC3339Nano, m[1])
		ends, err2 := time.Parse(time.RFC3339Nano, m[3])
		if err1 != nil || err2 != nil {
			t.Fatalf("no times: %q", m[0])
		}
		all = append(all, turn{m[2], begins, ends})
	}
	return all
}

func scrape(t *testing.T, s *service) string {
	t.Helper()
	url := regexp.MustCompile(`http://\S+`).FindString(s.out.String())
	resp, err := (&http.Client{Timeout: time.Minute}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An output collects what a process writes, and can be read at the same time.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
