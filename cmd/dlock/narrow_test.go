//go:build unix

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// fits asserts that a terminal breaks no line of a text.
func fits(t *testing.T, what, text string, columns int) {
	t.Helper()
	host, _ := os.Hostname() // it may be long, and is no shorter than h
	text = strings.ReplaceAll(colours.ReplaceAllString(text, ""), host, "h")
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\r\n"))); n > columns {
			t.Errorf("%s: %d columns: %q", what, n, line)
		}
	}
}

// What people read breaks between words, on a narrow terminal and on a wide one.
func TestNarrowTerminal(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	const key = "deploy:web-frontend-production"
	holds(t, backend, "billing", key)
	waits(t, backend, "bob", key, 1)
	for _, columns := range []int{60, 120} {
		for _, args := range [][]string{{"doctor"}, {"show", key}, {"ls"}} {
			cmd := command(backend, args...)
			s := onTerminalOf(t, cmd, uint16(columns))
			if code := exitOf(cmd); code != 0 {
				t.Errorf("%q: exit %d, %s", args, code, s)
			}
			<-s.done
			fits(t, args[0], s.String(), columns)
		}
		cmd := command(backend, "evict", key)
		s := onTerminalOf(t, cmd, uint16(columns))
		s.shows(t, "[y/N] ")
		fits(t, "evict", s.String(), columns)
		if _, err := s.Write([]byte("n\n")); err != nil {
			t.Fatal(err)
		}
		if code := exitOf(cmd); code != 75 {
			t.Errorf("evict: exit %d, %s", code, s)
		}
		waiter := command(backend, "run", key, "--", "true")
		s = onTerminalOf(t, waiter, uint16(columns))
		s.shows(t, " ahead [")
		fits(t, "run", strings.ReplaceAll(s.String(), "\r\x1b[K", "\n"), columns)
	}
}

// On forty columns, a wait names its key, and a watch shows the columns that it has room for.
func TestVeryNarrowTerminal(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	holds(t, backend, "billing", "deploy:web")
	waits(t, backend, "bob", "deploy:web", 1)
	waiter := command(backend, "run", "deploy:web", "--", "true")
	s := onTerminalOf(t, waiter, 40)
	s.shows(t, "deploy:web, 1 ahead [")
	fits(t, "run", strings.ReplaceAll(s.String(), "\r\x1b[K", "\n"), 40)
	watch := command(backend, "watch")
	watch.Env = append(watch.Env, "TERM=xterm")
	s = onTerminalOf(t, watch, 40)
	s.shows(t, "billing")
	if text := s.String(); !strings.Contains(text, "HELD") || strings.Contains(text, "WAITERS") {
		t.Errorf("%q", text)
	}
	_, _ = s.Write([]byte("q"))
	if code := exitOf(watch); code != 0 {
		t.Errorf("exit %d", code)
	}
}
