package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// packagesOfRows are where the tests are that a row of hazards.md names.
var packagesOfRows = map[string]string{
	"engine": "pkg/dlock", "Redis": "pkg/dlock/redislock", "etcd": "pkg/dlock/etcdlock", "Redlock": "pkg/dlock/redlock",
	"files": "pkg/dlock/filelock", "memory": "pkg/dlock/memlock", "command": "cmd/dlock", "connectors": "pkg/connector",
}

// rowsOfAll are the rows that every hazard has.
var rowsOfAll = []string{"engine", "Redis", "etcd", "Redlock", "files"}

var (
	testFunction = regexp.MustCompile(`^func ((?:Test|Example|Fuzz|Benchmark)\w*)\(`)
	testName     = regexp.MustCompile("`(Test\\w+)`")
)

// Every test that hazards.md names exists in the package of its row, and every hazard has a
// row for each backend: tests, or why there are none.
func TestHazardsAreShown(t *testing.T) {
	text, err := os.ReadFile("hazards.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for row, dir := range packagesOfRows {
		known[row] = testsIn(t, filepath.Join("..", dir))
	}
	hazards := strings.Split(string(text), "\n### ")[1:]
	if len(hazards) < 60 {
		t.Errorf("%d hazards, there were more than 60", len(hazards))
	}
	for _, hazard := range hazards {
		title, _, _ := strings.Cut(hazard, "\n")
		rows := rowsOf(hazard)
		for _, row := range rowsOfAll {
			if rows[row] == "" {
				t.Errorf("%s: no row for %s", title, row)
			}
		}
		for row, cell := range rows {
			if _, ok := packagesOfRows[row]; !ok {
				t.Errorf("%s: no package for the row %s", title, row)
			}
			for _, m := range testName.FindAllStringSubmatch(cell, -1) {
				if !slices.Contains(known[row], m[1]) && !namesAnother(cell, known) {
					t.Errorf("%s: %s has no %s", title, packagesOfRows[row], m[1])
				}
			}
		}
	}
}

// namesAnother reports whether a cell is a sentence that names tests of another package.
func namesAnother(cell string, known map[string][]string) bool {
	if strings.HasPrefix(cell, "`") && !strings.Contains(cell, " of the ") {
		return false
	}
	m := testName.FindStringSubmatch(cell)
	for _, names := range known {
		if slices.Contains(names, m[1]) {
			return true
		}
	}
	return false
}

// rowsOf are the cells of the table of a hazard, by the names of their rows.
func rowsOf(hazard string) map[string]string {
	rows := map[string]string{}
	for line := range strings.Lines(hazard) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 2 {
			continue
		}
		name := strings.TrimSpace(cells[0])
		if name != "" && !strings.HasPrefix(name, "---") {
			rows[name] = strings.TrimSpace(cells[1])
		}
	}
	return rows
}

// testsIn are the names of the tests of a package.
func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	names, err := functionsIn(dir)
	if err != nil || len(names) == 0 {
		t.Fatalf("no tests in %s: %v", dir, err)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, "Test") })
}

// foundFunctions are the results of functionsIn: many blocks and commands name tests of the same folders.
var foundFunctions sync.Map

// functionsIn are the names of the functions in a folder that go test runs.
func functionsIn(dir string) (names []string, err error) {
	if found, ok := foundFunctions.Load(dir); ok {
		return found.([]string), nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if m := testFunction.FindStringSubmatch(line); m != nil {
				names = append(names, m[1])
			}
		}
	}
	foundFunctions.Store(dir, names)
	return names, nil
}
