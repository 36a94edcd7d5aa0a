package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A Checker finds mutants that do not compile without calling the compiler.
type Checker struct {
	fset     *token.FileSet
	path     string
	files    map[string]*ast.File // by path relative to the root
	importer types.Importer
}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// list asks the go command about a package and all that it needs.
func list(ctx context.Context, root, pkg string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./"+pkg)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pkg, err)
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list %s: %w", pkg, err)
		}
		packages = append(packages, p)
	}
}

// NewChecker reads the package in the folder pkg of root, as it is built here.
func NewChecker(ctx context.Context, root, pkg string) (*Checker, error) {
	packages, err := list(ctx, root, pkg)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	own := packages[len(packages)-1] // dependencies come first
	c := &Checker{fset: token.NewFileSet(), path: own.ImportPath, files: map[string]*ast.File{}}
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, name := range own.GoFiles {
		file, err := parser.ParseFile(c.fset, filepath.Join(own.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		c.files[pkg+"/"+name] = file
	}
	return c, nil
}

// Files are the files of the package that are built here, relative to the root.
func (c *Checker) Files() []string {
	var files []string
	for name := range c.files {
		files = append(files, name)
	}
	return files
}

// Compiles says whether a mutant is a program.
func (c *Checker) Compiles(m mutate.Mutant, src []byte) bool {
	return c.Check(map[string][]byte{m.File: m.Apply(src)}) == nil
}

// Check compiles the package with other texts for some of its files, given by their paths
// relative to the root.
func (c *Checker) Check(changed map[string][]byte) error {
	var files []*ast.File
	for name, file := range c.files {
		if text, ok := changed[name]; ok {
			var err error
			file, err = parser.ParseFile(c.fset, "", text, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
		}
		files = append(files, file)
	}
	config := types.Config{Importer: c.importer}
	_, err := config.Check(c.path, c.fset, files, nil)
	return err
}
