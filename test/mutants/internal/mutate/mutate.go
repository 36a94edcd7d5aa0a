// Package mutate generates mutants: copies of a source file with one small mistake each.
package mutate

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Mutant replaces the bytes from Start to End of a file by New.
type Mutant struct {
	File  string `json:"file"` // relative to the root of the repository, with slashes
	Func  string `json:"func"` // the enclosing function, "-" outside of functions
	Kind  string `json:"kind"`
	Text  string `json:"text"` // the line, with the change as «old → new»
	Twin  int    `json:"twin"` // counts mutants of one function with the same text, from 0
	Line  int    `json:"line"` // for people: the identity of a mutant has no line number
	Start int    `json:"-"`    // offset in the file
	End   int    `json:"-"`    //
	New   string `json:"-"`    //
}

// Generate returns all mutants of a Go file or a Lua script. Some of a Go file may not
// compile.
func Generate(file string, src []byte) ([]Mutant, error) {
	g := &generator{file: file, src: src}
	var err error
	switch path.Ext(file) {
	case ".go":
		err = g.golang()
	case ".lua":
		err = g.lua()
	default:
		err = fmt.Errorf("neither Go nor Lua")
	}
	if err != nil {
		return nil, fmt.Errorf("mutate %s: %w", file, err)
	}
	return g.finish(), nil
}

// Apply returns the source with the mistake.
func (m Mutant) Apply(src []byte) []byte {
	return slices.Concat(src[:m.Start], []byte(m.New), src[m.End:])
}

// ID identifies a mutant as long as its own line stays as it is.
func (m Mutant) ID() string {
	sum := m.sum(0)
	return hex.EncodeToString(sum[:8])
}

func (m Mutant) String() string {
	return fmt.Sprintf("%s:%d %s: %s", m.File, m.Line, m.Func, m.Name())
}

// Name is the text, with a number where a function has several mutants of that text.
func (m Mutant) Name() string {
	if m.Twin == 0 {
		return m.Text
	}
	return fmt.Sprintf("%s #%d", m.Text, m.Twin+1)
}

func (m Mutant) sum(seed uint64) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s\x00%s\x00%d", seed, m.File, m.Func, m.Text, m.Twin))
}

// Rank orders the mutants of a file at random, by seed: first one of each place in the file,
// so that a sample of the first ones is spread over it. The place in the order depends on
// nothing but the mutants of the same line, so that a sample changes little when the file does.
func Rank(mutants []Mutant, seed uint64) []Mutant {
	draw := func(m Mutant) uint64 {
		sum := m.sum(seed + 1)
		return binary.BigEndian.Uint64(sum[:8])
	}
	ranked := slices.SortedFunc(slices.Values(mutants), func(a, b Mutant) int { return cmp.Compare(draw(a), draw(b)) })
	round, next := make(map[string]int, len(ranked)), map[int]int{}
	for _, m := range ranked {
		round[m.ID()] = next[m.Start]
		next[m.Start]++
	}
	slices.SortStableFunc(ranked, func(a, b Mutant) int { return cmp.Compare(round[a.ID()], round[b.ID()]) })
	return ranked
}

type generator struct {
	file    string
	src     []byte
	fn      string
	mutants []Mutant
}

func (g *generator) add(kind string, start, end int, replacement string) {
	fn := g.fn
	if fn == "" {
		fn = "-"
	}
	g.mutants = append(g.mutants, Mutant{
		File: g.file, Func: fn, Kind: kind, Start: start, End: end, New: replacement,
		Line: strings.Count(string(g.src[:start]), "\n") + 1,
		Text: g.text(start, end, replacement),
	})
}

// text shows the change within its line.
func (g *generator) text(start, end int, replacement string) string {
	before, after := string(g.src[:start]), string(g.src[end:])
	before = flat(before[strings.LastIndexByte(before, '\n')+1:])
	after, _, _ = strings.Cut(after, "\n")
	return strings.TrimSpace(before + "«" + short(string(g.src[start:end])) + " → " + short(replacement) + "»" + flat(after))
}

// flat makes one space of all white space in a row, at the ends too.
func flat(s string) string {
	words := strings.Join(strings.Fields(s), " ")
	if words == "" {
		return ""
	}
	if strings.TrimLeft(s, " \t\n") != s {
		words = " " + words
	}
	if strings.TrimRight(s, " \t\n") != s {
		words += " "
	}
	return words
}

// short leaves out the middle of what is long.
func short(s string) string {
	letters := []rune(strings.TrimSpace(flat(s)))
	if len(letters) <= 100 {
		return string(letters)
	}
	return string(letters[:60]) + "…" + string(letters[len(letters)-30:])
}

// finish drops mutants that are the same, and numbers those that look the same.
func (g *generator) finish() []Mutant {
	slices.SortStableFunc(g.mutants, func(a, b Mutant) int { return cmp.Compare(a.Start, b.Start) })
	type change struct {
		start, end int
		text       string
	}
	type look struct{ fn, text string }
	seen, twins := map[change]bool{}, map[look]int{}
	var out []Mutant
	for _, m := range g.mutants {
		c := change{m.Start, m.End, m.New}
		if seen[c] || string(g.src[m.Start:m.End]) == m.New {
			continue
		}
		seen[c] = true
		l := look{m.Func, m.Text}
		m.Twin = twins[l]
		twins[l]++
		out = append(out, m)
	}
	return out
}
