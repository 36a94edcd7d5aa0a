package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The same files give the same archive, whenever and with whatever rights they were made.
func TestPackIsReproducible(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	for _, name := range []string{"a.tar.gz", "a.tar", "a.zip"} {
		var first []byte
		for i, perm := range []os.FileMode{0o600, 0o664} {
			dir := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(dir, "in", "sub"), 0o700))
			for _, f := range []string{"in/b", "in/a", "in/sub/c"} {
				must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), perm))
				must(t, os.Chtimes(filepath.Join(dir, f), time.Now(), time.Unix(int64(i), 0)))
			}
			archive := filepath.Join(dir, name)
			must(t, pack(archive, filepath.Join(dir, "in"), at))
			content, err := os.ReadFile(archive)
			must(t, err)
			if i > 0 && !bytes.Equal(content, first) {
				t.Errorf("%s differs", name)
			}
			first = content
		}
	}
	if err := pack(filepath.Join(t.TempDir(), "a.rar"), t.TempDir(), at); err == nil {
		t.Error("an unknown format is accepted")
	}
}

func TestSourceTime(t *testing.T) {
	t.Parallel()
	if at, err := sourceTime("1700000000"); err != nil || at.Unix() != 1_700_000_000 {
		t.Errorf("%v, %v", at, err)
	}
	if _, err := sourceTime("yesterday"); err == nil {
		t.Error("a bad SOURCE_DATE_EPOCH is accepted")
	}
}

// Lines of a table stay lines, and no page depends on the user or the day.
func TestDocs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, writeDocs(dir, time.Unix(1_700_000_000, 0).UTC()))
	page, err := os.ReadFile(filepath.Join(dir, "man", "dlock-backends.1"))
	must(t, err)
	for _, want := range []string{`"Nov 2023"`, "\nfile:///dir  ", "/tmp/dlock-UID"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
	page, err = os.ReadFile(filepath.Join(dir, "man", "dlock.1"))
	must(t, err)
	for _, want := range []string{"dlock-run(1)", "dlock-backends(1)"} {
		if _, see, _ := strings.Cut(string(page), ".SH SEE ALSO"); !strings.Contains(see, want) {
			t.Errorf("dlock.1 does not refer to %s", want)
		}
	}
	for _, name := range []string{"dlock.bash", "dlock.zsh", "dlock.fish", "dlock.ps1"} {
		if script, err := os.ReadFile(filepath.Join(dir, "completions", name)); err != nil || len(script) < 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(script), err)
		}
	}
}

// The notices of all systems are there, and those of Go.
func TestNotices(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "NOTICES")
	must(t, writeNotices("../../cmd/dlock", file))
	text, err := os.ReadFile(file)
	must(t, err)
	for _, want := range []string{"\nGo go1.", "\ngithub.com/redis/go-redis/v9 v", "\ngithub.com/inconshreveable/mousetrap v", ", NOTICE"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the notices", want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
