//go:build unix

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
)

// loads is whatever makes a browser fetch something.
var loads = regexp.MustCompile(`(?i)https?:|//[a-z]|<script|<link|<img|<iframe|<object|@import|url\(|\ssrc=|\shref=`)

// checkPage reads a page as strict XML, and looks that it needs nothing else.
func checkPage(t *testing.T, path string, charts int, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			seen[e.Name.Local]++
		}
	}
	if seen["html"] != 1 || seen["figure"] != charts || seen["table"] == 0 || seen["caption"] != seen["table"] || seen["title"] < 1+charts {
		t.Errorf("elements: %v, want %d charts", seen, charts)
	}
	withoutBackend := regexp.MustCompile(`(redis|file)://`).ReplaceAllString(string(text), "")
	if found := loads.FindString(withoutBackend); found != "" {
		t.Errorf("it loads something: %q", found)
	}
	if !strings.Contains(string(text), want) || !strings.Contains(string(text), "prefers-color-scheme: dark") {
		t.Errorf("no %q in %s", want, text)
	}
}

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for name, args := range map[string][]string{
		"fewer than three rounds": {"--rounds", "2"},
		"no clients":              {"--clients", "0"},
		"a number named twice":    {"--clients", "4,4"},
		"a negative section":      {"--section", "-1ms"},
		"a section without turns": {"--section", "1s", "--duration", "2s"},
		"a round of no length":    {"--duration", "0s"},
		"a page nowhere":          {"--html", filepath.Join(t.TempDir(), "nowhere", "report.html")},
		"a key that is none":      {"--key", "a\nb"},
		"an argument":             {"key"},
	} {
		stdout, stderr, code := dlock(t, backend, append([]string{"bench"}, args...)...)
		if code != 64 || stdout != "" || stderr == "" {
			t.Errorf("%s: exit %d, %q, %q", name, code, stdout, stderr)
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(backend, "file://")); err == nil {
		t.Error("something was done")
	}
}

// A page that gets no report is not made, and one that is there stays.
func TestBenchWithoutBackend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, none := filepath.Join(dir, "before.html"), filepath.Join(dir, "none.html")
	if err := os.WriteFile(before, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{before, none} {
		stdout, stderr, code := dlock(t, "redis://127.0.0.1:1", "bench", "--html", page)
		if code != 69 || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit %d, %q, %q", code, stdout, stderr)
		}
	}
	text, err := os.ReadFile(before)
	if _, made := os.Stat(none); err != nil || string(text) != "mine" || !errors.Is(made, os.ErrNotExist) {
		t.Errorf("%q, %v, %v", text, err, made)
	}
}

// A backend that goes away ends it with what was measured.
func TestBenchLosesItsBackend(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	config := filepath.Join(t.TempDir(), "service.yaml")
	text := "dlock: {backend: redis, max_retries: 1, retry_interval: 10ms}\nredis: {addr: " + proxy.Addr() + "}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command("", "bench", "--config", config, "--clients", "3", "--duration", "2m", "--json")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	underWay(t, proxy)
	proxy.Refuse(true)
	proxy.Cut()
	if code := exitOf(cmd); code != 69 || errs.Len() == 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	r := readBench(t, out.String())
	if r.Ended == "" || r.Exclusion.Overlaps != 0 || len(r.Results[0].Rounds) != 1 {
		t.Errorf("%+v", r)
	}
}

// On a terminal there is one line, which changes, and is gone in the end.
func TestBenchOnTerminal(t *testing.T) {
	t.Parallel()
	cmd := command(files(t), "bench", "--clients", "2", "--section", "0", "--duration", "2s")
	s := onTerminal(t, cmd)
	s.shows(t, "2/3, round 2, 2 clients, empty section: ")
	s.shows(t, "Mutual exclusion held")
	if code := exitOf(cmd); code != 0 {
		t.Errorf("exit %d", code)
	}
	before, _, _ := strings.Cut(s.String(), "file at ")
	if !strings.HasSuffix(before, "\r\x1b[K") || strings.Count(before, "\n") != 1 {
		t.Errorf("%q", before)
	}
}
