package docs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/internal/docscan"
)

// Flags of go test that the documents use, by whether a value follows.
var (
	flagsWithValue = []string{"-run", "-bench", "-benchtime", "-fuzz", "-fuzztime", "-timeout", "-p"}
	flagsAlone     = []string{"-v", "-race"}
	functionOf     = map[string]string{"-run": "(?:Test|Example|Fuzz)", "-bench": "Benchmark", "-fuzz": "Fuzz"}
)

// goTest checks a command that would take long: its packages exist and have such tests, and something
// reads its variables.
func goTest(c docscan.Command) (string, error) {
	words, patterns := docscan.Words(c.Text), map[string]string{}
	var folders []string
	var errs []error
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		name, _, variable := strings.Cut(w, "=")
		switch {
		case w == "go" || w == "test" || slices.Contains(flagsAlone, w):
		case w == "-args" || strings.HasPrefix(w, "-rapid."):
			words = nil // for the test binary
		case slices.Contains(flagsWithValue, w) && len(words) > 0:
			patterns[w] = words[0]
			words = words[1:]
		case name == "-count" || name == "-coverpkg":
		case w == "-C" && len(words) > 0: // a module of its own, of which "." is the package
			words[0] = "./" + words[0]
		case w == ".":
		case strings.HasPrefix(w, "./"):
			found, err := packageFolders(w)
			folders = append(folders, found...)
			errs = append(errs, err)
		case variable && strings.HasPrefix(name, "DLOCK_"):
			if !inSource("pkg", `"`+name+`"`) && !inSource("internal", `"`+name+`"`) {
				errs = append(errs, fmt.Errorf("no test reads %s", name))
			}
		default:
			errs = append(errs, fmt.Errorf("%s is not known to this test", w))
		}
	}
	for flag, function := range functionOf {
		pattern, ok := patterns[flag]
		if ok && pattern != "^$" {
			errs = append(errs, matches(folders, function, pattern))
		}
	}
	if len(folders) == 0 {
		errs = append(errs, errors.New("no package"))
	}
	return "", errors.Join(errs...)
}

// packageFolders returns the folders that a pattern names, all of which have tests.
func packageFolders(pattern string) (folders []string, err error) {
	path, below := strings.CutSuffix(pattern, "/...")
	path = filepath.Join(root, path)
	if !below {
		tests, err := filepath.Glob(filepath.Join(path, "*_test.go"))
		if len(tests) == 0 {
			err = errors.Join(err, fmt.Errorf("%s has no tests", pattern))
		}
		return []string{path}, err
	}
	err = filepath.WalkDir(path, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	return folders, err
}

// matches checks that some function of the packages matches the first part of a pattern.
func matches(folders []string, function, pattern string) error {
	first, _, _ := strings.Cut(pattern, "/")
	want, err := regexp.Compile(first)
	if err != nil {
		return err
	}
	kind := regexp.MustCompile("^" + function)
	for _, folder := range folders {
		names, err := functionsIn(folder)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(names, func(name string) bool { return kind.MatchString(name) && want.MatchString(name) }) {
			return nil
		}
	}
	return fmt.Errorf("no test matches %q", pattern)
}
