package judge

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

var runnable = regexp.MustCompile(`^(Test|Example|Fuzz)($|[^a-z])`)

// testTexts are the tests, examples and fuzz tests of a folder, with a hash of their text.
func testTexts(dir string) (map[string]string, error) {
	tests := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		funcs, err := functions(src)
		if err != nil {
			return nil, err
		}
		for name, f := range funcs {
			if runnable.MatchString(name) && name != "TestMain" {
				tests[name] = f.hash
			}
		}
	}
	return tests, nil
}

// A function is a piece of a file.
type function struct {
	first, last int // lines
	hash        string
}

// functions are those that a file declares, by Type.Method or name.
func functions(src []byte) (map[string]function, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	found := map[string]function{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		from, to := fset.Position(f.Pos()), fset.Position(f.End())
		found[mutate.FuncName(f)] = function{from.Line, to.Line, hash(src[from.Offset:to.Offset])}
	}
	return found, nil
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// filesBelow are the files of a folder and those below it; none if it does not exist.
func filesBelow(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return files, err
}

// hashFiles is one hash of the names and texts of files.
func hashFiles(root string, files []string) (string, error) {
	slices.Sort(files)
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(name), len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}
