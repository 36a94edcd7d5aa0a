// Package docs_test holds the documentation against the code.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var block = regexp.MustCompile("(?ms)^```(go|lua|yaml)\n(.*?)^```$")

// The code of these pages is code that is compiled and tested elsewhere.
func TestCode(t *testing.T) {
	sources := map[string]string{}
	for _, dir := range []string{"../examples", "../test/interop"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				sources[path] = flat(read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range []string{"../README.md", "getting-started.md", "fencing.md", "migration.md"} {
		blocks := block.FindAllStringSubmatch(read(t, page), -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no code", page)
		}
		for _, b := range blocks {
			if page == "../README.md" && strings.HasPrefix(b[2], "package main") {
				continue // a program of its own, for people without a server
			}
			if !anywhere(sources, flat(b[2])) {
				t.Errorf("%s has code that is nowhere else:\n%s", page, b[2])
			}
		}
	}
}

// flat leaves out indentation.
func flat(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(text) {
		lines.WriteString("\n" + strings.TrimSpace(line))
	}
	return lines.String() + "\n"
}

func anywhere(sources map[string]string, code string) bool {
	for _, text := range sources {
		if strings.Contains(text, code) {
			return true
		}
	}
	return false
}

// Every setting has a row with its name and its variable.
func TestConfigurationHasAll(t *testing.T) {
	page := read(t, "configuration.md")
	for prefix, section := range map[string]any{
		"GENESIS_LOG_": clog.Config{}, "GENESIS_DLOCK_": dlock.Config{},
		"GENESIS_REDIS_": connector.RedisConfig{}, "GENESIS_ETCD_": connector.EtcdConfig{}, "…_TLS_": connector.TLSConfig{},
	} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(section)) {
			name := f.Tag.Get("yaml")
			name, _, _ = strings.Cut(name, ",")
			row := "| `" + f.Name + "` | `" + name + "` | `" + prefix + strings.ToUpper(name)
			if name != "-" && !strings.Contains(page, row) {
				t.Errorf("configuration.md has no row %q", row)
			}
		}
	}
}

// The file in the page is accepted, and so is every variable that a page names.
func TestConfigurationIsKnown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "service.yaml")
	yaml := block.FindStringSubmatch(read(t, "configuration.md"))
	if err := os.WriteFile(file, []byte(yaml[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := container.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	variable := regexp.MustCompile(`GENESIS_\w+[A-Z]\b`)
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../README.zh-CN.md", "../examples/README.md", "../examples/container/service.yaml") {
		for _, name := range variable.FindAllString(read(t, page), -1) {
			os.Setenv(name, "")
			if _, err := container.Load(""); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			os.Unsetenv(name)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links within the repository lead somewhere, and all pages are in the index.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../*.md", "*.md", "*/*.md", "../examples/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	linked := map[string]bool{"README.md": true}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			linked[target] = linked[target] || page == "README.md"
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if anchor != "" && !hasAnchor(read(t, target), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, target, anchor)
			}
		}
	}
	for _, page := range pages {
		if !strings.HasPrefix(page, "..") && !strings.HasPrefix(page, "adr/0") && !linked[page] {
			t.Errorf("README.md does not name %s", page)
		}
	}
}

// hasAnchor knows how headings become anchors.
func hasAnchor(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
