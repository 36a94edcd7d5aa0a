package main

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/soak"
)

// The commands of the documents and of the Makefile have flags that exist, and name topologies and
// modes that exist. plan is run: it only prints.
func TestDocumentedCommands(t *testing.T) {
	commands, err := docscan.Commands("..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, c := range commands {
		text, ok := strings.CutPrefix(c.Text, "go run -C lab . ")
		if !ok {
			continue
		}
		checked++
		err := checkDocumented(docscan.Words(text))
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	if checked < 20 {
		t.Errorf("%d commands, there were more", checked)
	}
}

func checkDocumented(args []string) error {
	switch args[0] {
	case "plan":
		return command(args)
	case "replay":
		s, err := specFlags("replay", args[1:])
		return errors.Join(err, known(s.Topology, string(s.Mode)))
	case "run":
		o, err := parseRun(args[1:])
		for _, s := range o.specs() {
			err = errors.Join(err, known(s.Topology, string(s.Mode)))
		}
		return err
	}
	i := slices.Index(args, "-from")
	if i >= 0 && args[i+1] != soak.SamplesPath("results/soak.json") {
		return errors.New("a run writes no such samples")
	}
	err := command(append(args, "-help")) // it reads the flags, and runs nothing
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return errors.Join(err, errors.New("it does not end with its help"))
}

func known(topology, mode string) error {
	modes := []string{string(schedule.Inside), string(schedule.Beyond), string(schedule.Kills), string(schedule.Calm)}
	if !slices.Contains(schedule.Topologies, topology) || !slices.Contains(modes, mode) {
		return errors.New("no topology or no mode of this name: " + topology + ", " + mode)
	}
	return nil
}
