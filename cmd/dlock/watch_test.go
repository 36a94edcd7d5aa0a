//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/ceyewan/genesis/internal/testenv"
)

// watched is a dlock watch on a terminal, between two looks at how that is set.
func watched(t *testing.T, backend string, args ...string) (*screen, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{
		"-c", `stty -g; sh -c 'echo pid=$$; exec "$@"' sh "$@"; echo "code=$?"; stty -g; echo over`, "sh", program, "watch", "--interval", "100ms",
	}, args...)...)
	cmd.Env = append(os.Environ(), "DLOCK_BACKEND="+backend, "TERM=xterm", "NO_COLOR=1")
	s := onTerminal(t, cmd)
	s.shows(t, "q ends")
	return s, cmd
}

// frame is what the terminal shows now: a watch draws all of it each time.
func (s *screen) frame() string {
	text := s.String()
	return text[strings.LastIndex(text, "\x1b[H")+3:]
}

// restored asserts that the terminal is as it was.
func restored(t *testing.T, s *screen, cmd *exec.Cmd, code int) {
	t.Helper()
	s.shows(t, "over")
	_ = cmd.Wait()
	text := s.String()
	contains(t, text, fmt.Sprintf("code=%d\r\n", code), "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[?7h")
	if strings.LastIndex(text, "\x1b[?1049l") > strings.Index(text, "code=") {
		t.Errorf("the screen is given back too late: %q", text)
	}
	settings := regexp.MustCompile(`(?m)^[0-9a-f]+(:[0-9a-f]+)+`).FindAllString(text, -1)
	if len(settings) != 2 || settings[0] != settings[1] {
		t.Errorf("the terminal was set to %q", settings)
	}
}

func TestWatchOnTerminal(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		ann, _ := holds(t, backend, "ann", "app:k")
		holds(t, backend, "eve", "elsewhere")
		s, cmd := watched(t, backend, "app:")
		s.shows(t, "ann@")
		holds(t, backend, "bob", "app:new") // shows up by itself
		s.shows(t, "bob@")
		if name != "file" {
			waits(t, backend, "joe", "app:k", 1).end()
		}
		ann.end()
		testenv.Eventually(t, time.Minute, "a lock that was released is gone", func() bool {
			f := s.frame()
			return strings.Contains(f, "bob@") && !strings.Contains(f, "ann@")
		})
		if strings.Contains(s.String(), "elsewhere") {
			t.Errorf("not asked for: %q", s.frame())
		}
		if _, err := s.WriteString("xq"); err != nil {
			t.Fatal(err)
		}
		restored(t, s, cmd, 0)
	})
}

// However a watch ends, the terminal is given back.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	backend := files(t)
	pid := regexp.MustCompile(`pid=(\d+)`)
	for name, tc := range map[string]struct {
		typed  string
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C": {typed: "\x03"},
		"INT":    {signal: syscall.SIGINT},
		"TERM":   {signal: syscall.SIGTERM, code: 143},
		"HUP":    {signal: syscall.SIGHUP, code: 129},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cmd := watched(t, backend)
			s.shows(t, "nothing is locked")
			if _, err := s.WriteString(tc.typed); err != nil {
				t.Fatal(err)
			}
			if tc.signal != 0 {
				n, _ := strconv.Atoi(pid.FindStringSubmatch(s.String())[1])
				_ = syscall.Kill(n, tc.signal)
			}
			restored(t, s, cmd, tc.code)
		})
	}
}

// More locks than lines, and a terminal that changes its size.
func TestWatchResizes(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for i := range 8 {
		holds(t, backend, "ann", fmt.Sprintf("key-%d", i))
	}
	s, cmd := watched(t, backend)
	s.shows(t, "key-7")
	if err := pty.Setsize(s.File, &pty.Winsize{Rows: 8, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "a smaller table", func() bool {
		f := s.frame()
		return strings.Contains(f, "and 4 more") && strings.Contains(f, "key-3") && !strings.Contains(f, "key-4")
	})
	lines := strings.Split(s.frame(), "\r\n\x1b[K") // cleared first, or the last column would go
	if len(lines) != 8 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	for _, l := range lines {
		if n := len([]rune(strings.TrimSuffix(strings.TrimPrefix(l, "\x1b[K"), "\x1b[J"))); n > 60 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	_, _ = s.WriteString("Q")
	restored(t, s, cmd, 0)
}

// A backend that fails is told, asked again, and does not keep anybody from leaving.
func TestWatchThroughAnOutage(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	holds(t, backend, "ann", "k")
	faulty, p := through(t, backend)
	s, cmd := watched(t, faulty)
	s.shows(t, "ann@")
	p.Refuse(true)
	p.Cut()
	testenv.Eventually(t, time.Minute, "the outage", func() bool {
		f := s.frame()
		return !strings.Contains(f, "q ends") && strings.Contains(f, "dlock: list") && strings.Contains(f, "ann@")
	})
	p.Heal()
	testenv.Eventually(t, time.Minute, "the recovery", func() bool { return strings.Contains(s.frame(), "q ends") })
	p.BlackHole(true)
	before := s.String()
	testenv.Eventually(t, time.Minute, "an unanswered question", func() bool { return len(s.String()) > len(before) })
	_, _ = s.WriteString("q")
	began := time.Now()
	restored(t, s, cmd, 0)
	if took := time.Since(began); took > testenv.UnderStress(30*time.Second, 5*time.Second) { // the hole never answers
		t.Errorf("q took %v", took)
	}
}

// Where there is no terminal the table is written when something has changed.
func TestWatchToAPipe(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		ann, _ := holds(t, backend, "ann", "k")
		lines, cmd := piped(t, backend)
		expect(t, lines, "KEY ", "k ")
		bob, _ := holds(t, backend, "bob", "other")
		expect(t, lines, "\n", "KEY ", "k ", "other ")
		ann.end()
		expect(t, lines, "\n", "KEY ", "other ")
		bob.end()
		expect(t, lines, "\n", "KEY ")
		_ = cmd.Process.Signal(syscall.SIGINT)
		if code := exitOf(cmd); code != 0 {
			t.Errorf("exit %d", code)
		}
	})
}

func piped(t *testing.T, backend string, args ...string) (*bufio.Reader, *exec.Cmd) {
	t.Helper()
	cmd := command(backend, append([]string{"watch", "--interval", "100ms"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return bufio.NewReader(out), cmd
}

func expect(t *testing.T, lines *bufio.Reader, prefixes ...string) {
	t.Helper()
	for _, p := range prefixes {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, p) {
			t.Fatalf("%q (%v), want %q", line, err, p)
		}
	}
}

func TestWatchJSON(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		ann, token := holds(t, backend, "ann", "k")
		lines, cmd := piped(t, backend, "--json")
		next := func() (s shown) {
			line, err := lines.ReadString('\n')
			if err == nil {
				err = json.Unmarshal([]byte(line), &s)
			}
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			return s
		}
		if s := next(); s.Event != "held" || s.Token != token || s.Holders[0].Owner != "ann" || s.Time.IsZero() {
			t.Errorf("%+v", s)
		}
		var bob *claimant
		if name != "file" {
			bob = waits(t, backend, "bob", "k", 1)
			if s := next(); s.Event != "held" || s.Token != token || *s.Waiters != 1 {
				t.Errorf("%+v", s)
			}
		}
		ann.end()
		if bob != nil {
			if s := next(); s.Event != "held" || s.Token <= token || *s.Waiters != 0 || s.Holders[0].Owner != "bob" {
				t.Errorf("%+v", s)
			}
			bob.end()
		}
		if s := next(); s.Event != "free" || s.Key != "k" || len(s.Holders) != 0 {
			t.Errorf("%+v", s)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if code := exitOf(cmd); code != 143 {
			t.Errorf("exit %d", code)
		}
	})
}
