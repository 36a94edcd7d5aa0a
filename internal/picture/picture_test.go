//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPictureIsTrue(t *testing.T) {
	t.Parallel()
	dlock := t.TempDir()
	err := build(dlock)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("as drawn", func(t *testing.T) { testPicture(t, dlock) })
	t.Run("a command fails", func(t *testing.T) { testFailure(t, dlock) })
}

// The picture in the README is what the command shows today.
func testPicture(t *testing.T, dlock string) {
	t.Parallel()
	text, err := record(dlock, "")
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	file := filepath.Join("..", "..", "docs", "img", "run.svg")
	drawn, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(drawn) != draw(text) {
		t.Errorf("%s is not what the command shows; run make picture and look at it. It shows:\n%s", file, text)
	}
	if !strings.Contains(text, "exit 75") || !strings.Contains(text, "$ dlock ls") {
		t.Errorf("the scene does not show a refused holder: %s", text)
	}
}

// A command that fails ends the scene.
func testFailure(t *testing.T, dlock string) {
	t.Parallel()
	text, err := record(dlock, "file://relative")
	if err == nil || !strings.Contains(text, "absolute path") {
		t.Errorf("%v: %s", err, text)
	}
}

// Another host, process and time give the same text.
func TestAlways(t *testing.T) {
	t.Parallel()
	a := "\x1b[1mKEY\x1b[0m  \x1b[1mMODE\x1b[0m  \x1b[1mHOLDER\x1b[0m            \x1b[1mHELD\x1b[0m  LEASE  WAITERS\nk    excl  ann@a pid 7 (x)  30ms      \x1b[2m-\x1b[0m        \x1b[2m-\x1b[0m\nfor 1.048s, 0"
	b := strings.NewReplacer("ann@a pid 7", "ann@long.example pid 99999", "30ms", "  2s", "1.048s", "7ms").Replace(a)
	one, two := always(a, "a"), always(b, "long.example")
	if one != two || !strings.Contains(one, "ann@web-1 pid 4711 (x)") || !strings.Contains(one, " 12s ") || !strings.Contains(one, "for 12s") {
		t.Errorf("%q\n%q", one, two)
	}
}
