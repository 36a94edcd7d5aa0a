package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
)

var argumentsOf = regexp.MustCompile(`^(?:go run \./test/mutants|make mutants)(?: (.*))?$`)

// The commands of the documents have flags that exist, and name files and repairs that exist.
func TestDocumentedCommands(t *testing.T) {
	commands, err := docscan.Commands(root(t))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, c := range commands {
		m := argumentsOf.FindStringSubmatch(c.Text)
		if m == nil || strings.Contains(c.Text, "$(MUTANTS)") {
			continue
		}
		checked++
		args := docscan.Words(m[1])
		if strings.HasPrefix(c.Text, "make") && len(args) > 0 {
			variable, value, _ := strings.Cut(args[0], "=")
			if variable != "MUTANTS" {
				t.Errorf("%s: the Makefile has no variable %s", c, variable)
			}
			args = strings.Fields(value)
		}
		err := checkDocumented(root(t), args)
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	if checked < 10 {
		t.Errorf("%d commands, there were more", checked)
	}
}

func checkDocumented(root string, args []string) error {
	if len(args) > 0 && args[0] == "repairs" {
		o, err := parseRepairs(args[1:])
		if err != nil {
			return err
		}
		all, err := loadRepairs()
		if !slices.ContainsFunc(all, func(r repair) bool {
			return strings.Contains(r.name, o.only) || strings.EqualFold(r.item, o.only)
		}) {
			err = errors.Join(err, errors.New("no such repair"))
		}
		return err
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	for _, path := range o.patterns {
		_, missing := os.Stat(filepath.Join(root, path))
		err = errors.Join(err, missing)
	}
	return err
}
