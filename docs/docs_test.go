// Package docs_test holds the documentation against the code.
package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// dir holds what the tests build.
var dir string

func TestMain(m *testing.M) {
	var err error
	dir, err = os.MkdirTemp("", "dlock-docs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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

// Every variable that a page names is accepted.
func TestConfigurationIsKnown(t *testing.T) {
	variable := regexp.MustCompile(`GENESIS_\w+[A-Z]\b`)
	pages, err := docscan.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	pages = slices.DeleteFunc(pages, func(page string) bool { return page == "CHANGELOG.md" }) // names what is refused now
	for _, page := range append(pages, "examples/container/service.yaml") {
		for _, name := range variable.FindAllString(read(t, filepath.Join(root, page)), -1) {
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
	heading = regexp.MustCompile(`^#+ (.*)`)
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
	for line := range strings.Lines(text) {
		m := heading.FindStringSubmatch(line)
		if m != nil && strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
