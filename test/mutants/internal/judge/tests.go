package judge

import (
	"crypto/sha256"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
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

// hashFiles is one hash of all files that match the patterns.
func hashFiles(patterns ...string) (string, error) {
	var files []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}
