// Package docscan finds the code and the commands in the documentation, for the tests that run them.
package docscan

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Block is code that is set apart: a fenced block of a page, or an indented one of a comment.
type Block struct {
	Page string // its path from the root of the repository
	Line int    // its first line
	Lang string // what the fence says; for a comment go, sh, or "" if it is neither
	Text string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// notDocs are folders that hold what programs have written.
var notDocs = []string{".git", "build", "results", "testdata"}

// files returns the files below root whose names match, by their paths from root.
func files(root string, match func(name string) bool) (found []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(notDocs, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !match(d.Name()):
			return nil
		}
		path, err = filepath.Rel(root, path)
		found = append(found, filepath.ToSlash(path))
		return err
	})
	return found, err
}

// Pages returns the Markdown files of the repository.
func Pages(root string) ([]string, error) {
	return files(root, func(name string) bool { return strings.HasSuffix(name, ".md") })
}

// Blocks returns the fenced blocks of every page.
func Blocks(root string) (blocks []Block, err error) {
	err = eachPage(root, func(page, text string) error {
		found, _, err := split(page, text)
		blocks = append(blocks, found...)
		return err
	})
	return blocks, err
}

func eachPage(root string, do func(page, text string) error) error {
	pages, err := Pages(root)
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			return err
		}
		err = do(page, string(text))
		if err != nil {
			return err
		}
	}
	return nil
}

var fence = regexp.MustCompile("^( *)(```+|~~~+) *([^` \\n]*)")

// split separates a page into its blocks and its prose, which keeps its line numbers.
func split(page, text string) (blocks []Block, prose string, err error) {
	var b *Block
	var indent, end string
	var rest strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		n++
		m := fence.FindStringSubmatch(line)
		switch {
		case b == nil && m == nil:
			rest.WriteString(line)
			continue
		case b == nil:
			b = &Block{Page: page, Line: n + 1, Lang: m[3]}
			indent, end = m[1], m[2]
		case m != nil && m[3] == "" && strings.HasPrefix(m[2], end):
			blocks = append(blocks, *b)
			b = nil
		default:
			b.Text += strings.TrimPrefix(line, indent)
		}
		rest.WriteString("\n")
	}
	if b != nil {
		return nil, "", fmt.Errorf("%s: the block does not end", b)
	}
	return blocks, rest.String(), nil
}

// Comments returns the indented blocks of all comments in Go files other than tests.
func Comments(root string) (blocks []Block, err error) {
	sources, err := files(root, func(name string) bool {
		return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
	})
	if err != nil {
		return nil, err
	}
	for _, page := range sources {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(text, []byte("//\t")) {
			continue // most files; to parse them all takes a while
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, page, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, group := range file.Comments {
			blocks = append(blocks, codeIn(page, set.Position(group.Pos()).Line, group)...)
		}
	}
	return blocks, nil
}

// codeIn returns the blocks of a comment that begins at a line.
func codeIn(page string, line int, group *ast.CommentGroup) (blocks []Block) {
	raw := make([]string, len(group.List))
	for i, c := range group.List {
		raw[i] = strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
	}
	var p comment.Parser
	for _, part := range p.Parse(group.Text()).Content {
		code, ok := part.(*comment.Code)
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(code.Text, "\n")
		at := max(slices.Index(raw, strings.TrimSpace(first)), 0)
		blocks = append(blocks, Block{Page: page, Line: line + at, Lang: langOf(code.Text), Text: code.Text})
	}
	return blocks
}

// A command line begins with a program that the documentation uses, or with a variable for it.
var program = regexp.MustCompile(`^(\w+=\S* )*(@hourly +)?(go|make|dlock|cd|curl|flock|for|git|etcdctl|mkdir|redis-server|trylock|\./scripts/\w+)( |$)`)

// langOf tells Go code from commands. A comment has no fence that says it.
func langOf(text string) string {
	for _, form := range []string{"package p; func _() {\n%s\n}", "package p\n%s"} {
		_, err := parser.ParseFile(token.NewFileSet(), "", fmt.Sprintf(form, Elided(text)), parser.SkipObjectResolution)
		if err == nil {
			return "go"
		}
	}
	if program.MatchString(text) {
		return "sh"
	}
	return ""
}

// Elided removes the lines that stand for code that is left out.
func Elided(text string) string {
	return regexp.MustCompile(`(?m)^\s*\.\.\.$`).ReplaceAllString(text, "")
}
