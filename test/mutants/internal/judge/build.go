package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// errNoProgram is what a build of something that does not compile returns.
var errNoProgram = errors.New("does not compile")

// A builder compiles test binaries with a build cache of its own. What mutants leave in a
// cache is of no use to anybody, and is removed.
type builder struct {
	root  string
	cache string
	keep  map[string]bool // files of the cache that stay
}

// build compiles the tests of a package. Flags are those of go test.
func (b *builder) build(ctx context.Context, pkg, binary string, flags ...string) error {
	// Linking what only debuggers read takes two thirds of the time.
	args := append([]string{"go", "test", "-c", "-ldflags=-w", "-o", binary}, flags...)
	c := command{dir: b.root, args: append(args, "./"+pkg), tmp: filepath.Dir(binary)}
	if b.cache != "" {
		c.env = []string{"GOCACHE=" + b.cache}
	}
	out, _, err := c.run(ctx)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s: %s", errNoProgram, pkg, strings.TrimSpace(string(out)))
	}
	return err
}

// overlay writes the mutated file and what tells the compiler about it.
func (b *builder) overlay(m mutate.Mutant, src []byte, dir string) (file string, err error) {
	mutated, file := filepath.Join(dir, "mutated"+filepath.Ext(m.File)), filepath.Join(dir, "overlay.json")
	original := filepath.Join(b.root, filepath.FromSlash(m.File))
	text, err := json.Marshal(map[string]map[string]string{"Replace": {original: mutated}})
	if err != nil {
		return "", err
	}
	err = errors.Join(os.WriteFile(mutated, m.Apply(src), 0o600), os.WriteFile(file, text, 0o600))
	return file, err
}

// clone returns a builder with a copy of the cache, which takes no room until it changes.
func (b *builder) clone(cache string) (*builder, error) {
	if b.cache == "" {
		return b, nil
	}
	c := &builder{root: b.root, cache: cache, keep: map[string]bool{}}
	err := filepath.WalkDir(b.cache, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.cache, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(cache, name), 0o755)
		}
		c.keep[name] = true
		return link(path, filepath.Join(cache, name))
	})
	return c, err
}

// link copies where the file system has no links between the two folders.
func link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}

// prune removes what was added to the cache since it was copied.
func (b *builder) prune() error {
	if b.cache == "" {
		return nil
	}
	return filepath.WalkDir(b.cache, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(b.cache, path)
		if err != nil || b.keep[name] {
			return err
		}
		return os.Remove(path)
	})
}
