//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/internal/testenv"
)

// The examples in deploy/ hold a lock as they are, but for the backend and the command: the real
// program reads their arguments.
func TestDeployExamplesRun(t *testing.T) {
	t.Parallel()
	examples := append(manifestCommands(t), unitCommands(t)...)
	if len(examples) != 3 {
		t.Fatalf("deploy/ has %d commands, want 3: %q", len(examples), examples)
	}
	for _, args := range examples {
		i := slices.Index(args, "--")
		if i < 0 || i == len(args)-1 || filepath.Base(args[0]) != "dlock" {
			t.Errorf("%q is not dlock run … -- COMMAND", args)
			continue
		}
		// --min-hold would wait on files.
		call := slices.Clone(args[1:i])
		if hold := slices.Index(call, "--min-hold"); hold >= 0 {
			call[hold+1] = "1ms"
		}
		backend, every := files(t), slices.Contains(call, "--every")
		if every { // which needs leases
			backend = "redis://" + testenv.Redis(t).Addr()
		}
		call = append(call, "--", "sh", "-c", "echo $DLOCK_KEY")
		out, errs, code := dlock(t, backend, call...)
		if key := args[i-1]; code != 0 || out != key+"\n" || errs != "" {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
		if out, errs, code := dlock(t, backend, call...); every && (code != 0 || out != "") {
			t.Errorf("%q, again: exit %d, %q, %q", args, code, out, errs)
		}
	}
}

// unitCommands are the commands of the systemd units. One that a host makes up for at its start must not run twice.
func unitCommands(t *testing.T) (commands [][]string) {
	t.Helper()
	for _, path := range glob(t, "systemd/*.service") {
		for line := range strings.Lines(read(t, path)) {
			if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
				commands = append(commands, strings.Fields(command))
			}
		}
		timer := read(t, strings.TrimSuffix(path, ".service")+".timer")
		if command := read(t, path); strings.Contains(timer, "Persistent=true") && !strings.Contains(command, " --every ") {
			t.Errorf("%s runs again at the start of each host", path)
		}
		if !strings.Contains(timer, "\nOnCalendar=") || !strings.Contains(timer, "\nWantedBy=timers.target") {
			t.Errorf("%s has no timer that starts it", path)
		}
	}
	return commands
}

// manifestCommands are the commands of all containers that name a command.
func manifestCommands(t *testing.T) (commands [][]string) {
	t.Helper()
	for _, path := range glob(t, "kubernetes/*.yaml") {
		var manifest struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Spec       yaml.Node
		}
		if err := yaml.Unmarshal([]byte(read(t, path)), &manifest); err != nil || manifest.APIVersion == "" || manifest.Kind == "" {
			t.Fatalf("%s: %s %s, %v", path, manifest.APIVersion, manifest.Kind, err)
		}
		eachMapping(&manifest.Spec, func(n *yaml.Node) {
			var c struct {
				Command, Args []string
				Env           []struct{ Name, Value string }
			}
			if err := n.Decode(&c); err != nil || len(c.Command) == 0 {
				return
			}
			commands = append(commands, append(c.Command, c.Args...))
			for _, v := range c.Env {
				if _, err := cli.ParseURL(v.Value); v.Name == "DLOCK_BACKEND" && err != nil {
					t.Errorf("%s: %s: %v", path, v.Value, err)
				}
			}
		})
	}
	return commands
}

func eachMapping(n *yaml.Node, f func(*yaml.Node)) {
	if n.Kind == yaml.MappingNode {
		f(n)
	}
	for _, c := range n.Content {
		eachMapping(c, f)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", "deploy", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("deploy/%s: %v, %v", pattern, paths, err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
