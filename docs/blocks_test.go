package docs_test

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/pkg/container"
)

const root = ".."

// allBlocks are the blocks of all pages and of all comments.
var allBlocks = sync.OnceValues(func() ([]docscan.Block, error) {
	pages, err := docscan.Blocks(root)
	if err != nil {
		return nil, err
	}
	comments, err := docscan.Comments(root)
	return append(pages, comments...), err
})

func blocksOf(t *testing.T, lang string) (blocks []docscan.Block) {
	t.Helper()
	all, err := allBlocks()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if b.Lang == lang {
			blocks = append(blocks, b)
		}
	}
	if len(blocks) == 0 {
		t.Errorf("there is no block of %s any more", lang)
	}
	return blocks
}

// testOfLang is the test that runs the blocks of a language. Each runs all blocks of its language,
// whatever the page: a block that it does not know is a failure. Output is text, and in a console
// block it follows the command.
var testOfLang = map[string]string{
	"go":      "docs TestPrograms, TestSnippets, TestSnippetsOfEtcd, TestQuotes, TestListings",
	"sh":      "docs TestCommands, TestGettingStarted, TestEtcdctl",
	"console": "docs TestCommands",
	"yaml":    "docs TestConfigurationFiles",
	"redis":   "docs TestRightsOfRedis",
	"lua":     "docs TestQuotes",
	"sql":     "examples/fencing TestStatementsOfTheDocuments",
	"text":    "",
}

// Every block says what it is, and there is a test that runs such blocks.
func TestEveryBlockIsRun(t *testing.T) {
	blocks, err := allBlocks()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		_, ok := testOfLang[b.Lang]
		if !ok && b.Page != "pkg/clog/console.go" { // a line of output; a comment cannot say so
			t.Errorf("%s: no test runs a block of %q. Output is text", b, b.Lang)
		}
	}
	for lang, tests := range testOfLang {
		folder, names, _ := strings.Cut(tests, " ")
		for name := range strings.SplitSeq(names, ", ") {
			if name != "" && !slices.Contains(testsIn(t, filepath.Join(root, folder)), name) {
				t.Errorf("%s: %s has no %s", lang, folder, name)
			}
		}
	}
}

// Kinds of Go code.
const (
	program  = "program"
	quoted   = "quoted"   // it is in a file that is compiled and tested
	listing  = "listing"  // declarations without bodies
	fragment = "fragment" // anything else
)

// goBlocks sorts the Go code of the documents.
func goBlocks() (map[string][]docscan.Block, error) {
	all, err := allBlocks()
	if err != nil {
		return nil, err
	}
	quotes, err := quotable()
	if err != nil {
		return nil, err
	}
	kinds := map[string][]docscan.Block{}
	for _, b := range all {
		if b.Lang != "go" {
			continue
		}
		kind := fragment
		switch {
		case anywhere(quotes, flat(b.Text)):
			kind = quoted
		case strings.HasPrefix(b.Text, "package main"):
			kind = program
		case isListing(b.Text):
			kind = listing
		}
		kinds[kind] = append(kinds[kind], b)
	}
	return kinds, nil
}

// quotable are the files that the documents quote. Their own tests run them.
func quotable() (map[string]string, error) {
	sources := map[string]string{}
	for _, dir := range []string{"../examples", "../test/interop", "../test/fence"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) == ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			sources[path] = flat(string(text))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return sources, nil
}

// flat leaves out indentation, and comments at the end of a line: they are translated.
func flat(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(text) {
		code, _, _ := strings.Cut(line, " // ")
		lines.WriteString("\n" + strings.TrimSpace(code))
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

// These pages show code of the examples and of the tests of other libraries, and nothing else.
func TestQuotes(t *testing.T) {
	kinds, err := goBlocks()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range kinds[fragment] {
		if slices.Contains([]string{"docs/getting-started.md", "docs/fencing.md", "docs/migration.md"}, b.Page) {
			t.Errorf("%s is in no example:\n%s", b, b.Text)
		}
	}
	quotes, err := quotable()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocksOf(t, "lua") {
		if !anywhere(quotes, flat(b.Text)) {
			t.Errorf("%s is in no example:\n%s", b, b.Text)
		}
	}
}

func isListing(text string) bool {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Body != nil
	})
}

// A listing has functions and interfaces as they are in one of the packages.
func TestListings(t *testing.T) {
	kinds, err := goBlocks()
	if err != nil {
		t.Fatal(err)
	}
	apis := map[string]map[string]string{}
	for _, dir := range []string{"../pkg/dlock", "../pkg/dlock/driver"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		apis[dir] = map[string]string{}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				signatures(t, read(t, file), apis[dir])
			}
		}
	}
	for _, b := range kinds[listing] {
		var wrong []string
		for _, api := range apis {
			shown := map[string]string{}
			signatures(t, "package p\n"+b.Text, shown)
			wrong = append(wrong, differences(shown, api))
		}
		if !slices.Contains(wrong, "") {
			t.Errorf("%s is neither package:\n%s", b, strings.Join(wrong, "or\n"))
		}
	}
}

// signatures adds the functions and the interfaces of a file.
func signatures(t *testing.T, text string, found map[string]string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	print := func(n any) string {
		var s strings.Builder
		err := format.Node(&s, set, n)
		if err != nil {
			t.Fatal(err)
		}
		return s.String()
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				of = print(d.Recv.List[0].Type) + "."
			}
			found[of+d.Name.Name] = print(d.Type)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				s, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if i, ok := s.Type.(*ast.InterfaceType); ok {
					found[s.Name.Name] = methods(i, print)
				}
			}
		}
	}
}

// methods are those of an interface, without comments.
func methods(i *ast.InterfaceType, print func(any) string) string {
	var all []string
	for _, m := range i.Methods.List {
		all = append(all, fmt.Sprint(m.Names, print(m.Type)))
	}
	return strings.Join(all, "\n")
}

func differences(shown, api map[string]string) string {
	var s strings.Builder
	for name, is := range shown {
		if api[name] != is {
			fmt.Fprintf(&s, "%s\n\t%s\n\tis %s\n", name, is, api[name])
		}
	}
	return s.String()
}

// Every configuration file that a page shows is accepted.
func TestConfigurationFiles(t *testing.T) {
	for _, b := range blocksOf(t, "yaml") {
		file := filepath.Join(t.TempDir(), "service.yaml")
		if err := os.WriteFile(file, []byte(b.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := container.Load(file)
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
}

var (
	remark  = regexp.MustCompile(`(?m)(^| +)(#|//|--) .*$`)
	message = regexp.MustCompile(`Println\("[^"]*"`)
)

// Both READMEs have the same code and the same commands.
func TestREADMEsAreAlike(t *testing.T) {
	code := func(page string) (all []string) {
		blocks, err := allBlocks()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if b.Page == page {
				all = append(all, flat(b.Lang+"\n"+message.ReplaceAllString(remark.ReplaceAllString(b.Text, ""), "")))
			}
		}
		commands, err := allCommands()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			if c.Page == page {
				all = append(all, c.Text)
			}
		}
		return all
	}
	english, chinese := code("README.md"), code("README.zh-CN.md")
	if len(english) < 10 || !slices.Equal(english, chinese) {
		t.Errorf("README.md has\n%q\nREADME.zh-CN.md has\n%q", english, chinese)
	}
}
