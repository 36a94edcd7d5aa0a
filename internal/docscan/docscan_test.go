package docscan

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// repository writes files, by their paths, and returns their folder.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.ReplaceAll(text, "'''", "```")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestBlocks(t *testing.T) {
	root := repository(t, map[string]string{
		"a.md":              "text\n'''sh\nmake a # why\n'''\n* item\n  '''go\n  x := 1\n  \ty()\n  '''\n~~~\n'''\n~~~\n",
		"build/b.md":        "'''\nnot ours\n'''\n",
		"docs/results/c.md": "'''\nnot ours\n'''\n",
	})
	got, err := Blocks(root)
	want := []Block{{"a.md", 3, "sh", "make a # why\n"}, {"a.md", 7, "go", "x := 1\n\ty()\n"}, {"a.md", 11, "", "```\n"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBlockWithoutEnd(t *testing.T) {
	_, err := Blocks(repository(t, map[string]string{"a.md": "'''go\nx\n"}))
	if err == nil {
		t.Error("no error")
	}
}

func TestComments(t *testing.T) {
	root := repository(t, map[string]string{"a.go": `// Package a is used like this:
//
//	f(1)
//	...
//	g()
//
// or in a shell:
//
//	make a
package a

// F is a line such as
//
//	12:00 INFO this
func F() {
	// x is
	//	y := F()
}
`, "a_test.go": "// T is\n//\n//\tno example\npackage a\n"})
	got, err := Comments(root)
	want := []Block{
		{"a.go", 3, "go", "f(1)\n...\ng()\n"},
		{"a.go", 9, "sh", "make a\n"},
		{"a.go", 14, "", "12:00 INFO this\n"},
		{"a.go", 17, "go", "y := F()\n"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCommands(t *testing.T) {
	root := repository(t, map[string]string{
		"a.md":     "Run `make a\nb` or `x`,\n\nnot `makes`.\n'''sh\n# all\ngo test # quick\necho '# no' \"#\"\n'''\n'''console\n$ dlock ls\nKEY\n'''\n'''text\n$ no\n'''\n",
		"a.go":     "// Package a:\n//\n//\tgo run .\npackage a\n",
		"Makefile": "all: b ## all\n\t-$(GO) run . $$x\n\t@awk\n",
	})
	commands, err := Commands(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range commands {
		got = append(got, fmt.Sprint(c, " ", c.Span))
	}
	want := []string{
		"a.md:7: go test false", "a.md:8: echo '# no' \"#\" false", "a.md:11: dlock ls false", "a.md:1: make a b true",
		"a.go:3: go run . false", "Makefile:2: go run . $x false", "Makefile:3: awk false",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestWords(t *testing.T) {
	got := Words(`a  -run '^$' X='b c' "d"e ''`)
	if !reflect.DeepEqual(got, []string{"a", "-run", "^$", "X=b c", "de", ""}) {
		t.Errorf("%q", got)
	}
}
