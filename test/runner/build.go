package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A pkg is a package that has tests, and the program that runs them.
type pkg struct {
	Dir, ImportPath           string
	TestGoFiles, XTestGoFiles []string
	program                   string
}

// command is a call of go in the module. It says what it has to say on standard error.
func (o *options) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	all := []string{verb, "-C", o.module}
	if o.race {
		all = append(all, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(all, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// list returns the packages that have tests, those first that take long.
func (o *options) list(ctx context.Context) ([]*pkg, error) {
	text, err := o.command(ctx, "list", append([]string{"-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, o.packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []*pkg
	for in := json.NewDecoder(bytes.NewReader(text)); ; {
		p := &pkg{}
		if err := in.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("what go list says: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no package of %q in %s has tests", o.packages, o.module)
	}
	slices.SortStableFunc(all, func(a, b *pkg) int { return o.rank(a) - o.rank(b) })
	return all, nil
}

func (o *options) rank(p *pkg) int {
	for i, folder := range o.first {
		if folder != "" && strings.HasSuffix(p.ImportPath, "/"+folder) {
			return i
		}
	}
	return len(o.first)
}

// build links the programs that are not up to date. The path of a program is that of its package: other calls of the runner, for
// other packages, leave it alone.
func (o *options) build(ctx context.Context, all []*pkg) error {
	unfinished := o.programs + ".unfinished"
	if _, err := os.Stat(unfinished); err == nil { // a program may be there in part, and Go looks at its beginning only
		if err := os.RemoveAll(o.programs); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll(o.programs, 0o777), os.WriteFile(unfinished, nil, 0o666)); err != nil {
		return err
	}
	groups := map[string][]string{} // one call of go for a folder, in which names differ
	for _, p := range all {
		folder := filepath.Join(o.programs, filepath.FromSlash(path.Dir(p.ImportPath)))
		p.program = filepath.Join(folder, path.Base(p.ImportPath)+".test")
		groups[folder] = append(groups[folder], p.ImportPath)
	}
	for folder, paths := range groups {
		cmd := o.command(ctx, "test", append([]string{"-c", "-o", folder + string(filepath.Separator)}, paths...)...)
		cmd.Stdout = os.Stderr
		if err := cmd.Run(); err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Exited() { // by itself, with all that it began
				_ = os.Remove(unfinished)
			}
			return fmt.Errorf("go test -c: %w", err)
		}
	}
	return os.Remove(unfinished)
}
