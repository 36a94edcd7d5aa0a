package main

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Defects that were repaired, each as a patch that takes the core of its repair back. They
// are applied to copies. A patch is a unified diff after a few lines that say what it is; it
// is found by its text and not by its line numbers.
//
//go:embed repairs/*.patch
var repairFiles embed.FS

// A repair is one patch.
type repair struct {
	name   string
	item   string   // of the list of defects
	wrong  string   // what was wrong, in a few words
	judges []string // the simulators that could find it: engine, redis
	lab    []string // what to run the lab with; nil: it cannot show there
	suite  string   // the package of its own regression test
	test   string
	edits  []edit
}

// An edit replaces a piece of a file.
type edit struct{ file, old, new string }

func loadRepairs() (all []repair, err error) {
	files, err := repairFiles.ReadDir("repairs")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := repairFiles.ReadFile("repairs/" + f.Name())
		if err != nil {
			return nil, err
		}
		r, err := parseRepair(strings.TrimSuffix(f.Name(), ".patch"), string(text))
		if err != nil {
			return nil, fmt.Errorf("repairs/%s: %w", f.Name(), err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b repair) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func parseRepair(name, text string) (repair, error) {
	head, diff, ok := strings.Cut(text, "\n\n")
	r := repair{name: name}
	if !ok {
		return r, errors.New("no empty line between the head and the diff")
	}
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "item":
			r.item = value
		case "wrong":
			r.wrong = value
		case "judges":
			r.judges = strings.Fields(value)
		case "lab":
			r.lab = strings.Fields(value)
		case "test":
			r.suite, r.test, _ = strings.Cut(value, " ")
		default:
			return r, fmt.Errorf("head: %q", line)
		}
	}
	if r.item == "" || r.wrong == "" || r.test == "" {
		return r, errors.New("head: item, wrong or test is missing")
	}
	r.edits = parseDiff(diff)
	if len(r.edits) == 0 {
		return r, errors.New("no hunk")
	}
	return r, nil
}

// parseDiff reads the hunks of a unified diff.
func parseDiff(diff string) (edits []edit) {
	file := ""
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case strings.HasPrefix(line, "@@ "):
			edits = append(edits, edit{file: file})
		case len(edits) > 0:
			e := &edits[len(edits)-1]
			if line[0] != '+' {
				e.old += line[1:]
			}
			if line[0] != '-' {
				e.new += line[1:]
			}
		}
	}
	return edits
}

// apply returns the patched text of every file that the repair changes.
func (r repair) apply(root string) (map[string]string, error) {
	texts := map[string]string{}
	for _, e := range r.edits {
		text, ok := texts[e.file]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file)))
			if err != nil {
				return nil, err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s does not apply: %s has this %d times, not once:\n%s", r.name, e.file, n, e.old)
		}
		texts[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return texts, nil
}
