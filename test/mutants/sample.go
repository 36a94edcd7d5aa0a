package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A source is a file with the mutants that were chosen.
type source struct {
	file    string
	text    []byte
	target  judge.Target
	mutants []mutate.Mutant
}

// sources reads the files that the patterns choose, all files if there are none. The checker
// is nil for scripts.
func sources(ctx context.Context, root string, all []judge.Target, patterns []string, each func(source, *judge.Checker) error) error {
	used := make([]bool, len(patterns))
	for _, t := range all {
		chosen, err := targetFiles(root, t, patterns, used)
		if err != nil {
			return err
		}
		if len(chosen) == 0 {
			continue
		}
		checker, err := judge.NewChecker(ctx, root, t.Package)
		if err != nil {
			return err
		}
		built := checker.Files()
		for _, file := range chosen {
			c := checker
			if path.Ext(file) == ".lua" {
				c = nil
			} else if !slices.Contains(built, file) {
				continue // for another system
			}
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return err
			}
			if err := each(source{file: file, text: text, target: t}, c); err != nil {
				return err
			}
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return fmt.Errorf("%q is neither a file nor a package that has mutants", patterns[i])
	}
	return nil
}

// targetFiles are the files of a target that patterns choose. It marks the patterns.
func targetFiles(root string, t judge.Target, patterns []string, used []bool) ([]string, error) {
	var files []string
	for _, glob := range []string{t.Package + "/*.go", t.Scripts} {
		found, err := filepath.Glob(filepath.Join(root, glob))
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			file := strings.TrimPrefix(filepath.ToSlash(name), filepath.ToSlash(root)+"/")
			isCode := (path.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go")) || path.Ext(file) == ".lua"
			if isCode && chosen(file, t, patterns, used) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

func chosen(file string, t judge.Target, patterns []string, used []bool) bool {
	yes := len(patterns) == 0
	for i, p := range patterns {
		p = strings.TrimSuffix(strings.TrimPrefix(p, "./"), "/")
		below, deep := strings.CutSuffix(p, "/...")
		if p == file || p == t.Package || p == path.Dir(file) || deep && strings.HasPrefix(file, below+"/") {
			yes, used[i] = true, true
		}
	}
	return yes
}

// sample chooses n mutants that compile, all if n is 0. It leaves out equivalents.
func sample(s source, c *judge.Checker, seed uint64, n int, known equivalents) ([]mutate.Mutant, error) {
	all, err := mutate.Generate(s.file, s.text)
	if err != nil {
		return nil, err
	}
	var some []mutate.Mutant
	for _, m := range mutate.Rank(all, seed) {
		if n > 0 && len(some) == n {
			break
		}
		if !known.has(m) && (c == nil || c.Compiles(m, s.text)) {
			some = append(some, m)
		}
	}
	return some, nil
}
