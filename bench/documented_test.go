package main

import (
	"io"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
)

// The commands of the documents and of the Makefile name peers, workloads and flags that exist.
func TestDocumentedCommands(t *testing.T) {
	commands, err := docscan.Commands("..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, c := range commands {
		args, ok := strings.CutPrefix(strings.TrimPrefix(c.Text, "cd bench && "), "go run . ")
		if !ok {
			continue
		}
		checked++
		_, err := parse(docscan.Words(args), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	if checked < 5 {
		t.Errorf("%d commands, there were more", checked)
	}
}
