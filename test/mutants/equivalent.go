package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

//go:embed equivalent.txt
var equivalentText string

// separator stands between the parts of a line of equivalent.txt.
const separator = " :: "

// An equivalent is a mutant that no test can catch.
type equivalent struct{ file, fn, text string }

// equivalents have the reason.
type equivalents map[equivalent]string

// parseEquivalents reads the list: a line for each, with the file, the function, the mutation
// and the reason.
func parseEquivalents(text string) (equivalents, error) {
	list := equivalents{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, separator)
		if len(parts) != 4 || strings.TrimSpace(parts[3]) == "" {
			return nil, fmt.Errorf("equivalent.txt:%d: want FILE%sFUNCTION%sMUTATION%sREASON", n, separator, separator, separator)
		}
		e := equivalent{parts[0], parts[1], parts[2]}
		if list[e] != "" {
			return nil, fmt.Errorf("equivalent.txt:%d: is there twice", n)
		}
		list[e] = parts[3]
	}
	return list, nil
}

func identity(m mutate.Mutant) equivalent { return equivalent{m.File, m.Func, m.Name()} }

func (e equivalents) has(m mutate.Mutant) bool { return e[identity(m)] != "" }

// line is how a mutant is written in the list, without a reason.
func line(m mutate.Mutant) string {
	return strings.Join([]string{m.File, m.Func, m.Name()}, separator)
}
