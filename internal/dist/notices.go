package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// noticeFile is the name of a file that must be passed on with a program that contains the module.
var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// writeNotices writes the licences and notices of Go and of all modules that a package links, on any system that we build for.
func writeNotices(pkg, file string) error {
	env, err := exec.Command("go", "env", "GOVERSION", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	modules := map[string]string{"Go " + version: root} // to their directories
	for _, system := range []string{"linux", "darwin", "windows", "freebsd"} {
		if err := addModules(modules, pkg, system); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, "dlock contains the following software.")
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if err := addNotices(&text, name, modules[name]); err != nil {
			return err
		}
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// addModules adds the modules that a package links on a system, without its own.
func addModules(modules map[string]string, pkg, system string) error {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}", pkg)
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if name, dir, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			modules[name] = dir
		}
	}
	return nil
}

func addNotices(text *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !noticeFile.MatchString(e.Name()) {
			continue
		}
		notice, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(text, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("=", 72), name, e.Name(), bytes.TrimSpace(notice))
	}
	if !found {
		return errors.New(name + " has no licence")
	}
	return nil
}
