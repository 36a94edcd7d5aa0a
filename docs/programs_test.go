package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
)

// The programs of the design run as they stand, but for the address of the server.
func TestProgramsOfTheDesign(t *testing.T) {
	server := testenv.Redis(t)
	programs := 0
	for _, b := range block.FindAllStringSubmatch(read(t, "design.md"), -1) {
		if !strings.HasPrefix(b[2], "package main") {
			continue
		}
		programs++
		path := filepath.Join(t.TempDir(), "main.go")
		code := strings.ReplaceAll(b[2], "127.0.0.1:6379", server.Addr())
		if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		var logged strings.Builder
		run := exec.CommandContext(t.Context(), "go", "run", "-ldflags=-s -w", path)
		run.Stderr = &logged
		out, err := run.Output()
		if err != nil || string(out) != "the report is ours\n" {
			t.Errorf("program %d: %v, prints %q\n%s", programs, err, out, &logged)
		}
	}
	if programs != 2 {
		t.Errorf("%d programs, want 2", programs)
	}
}
