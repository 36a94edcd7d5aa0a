package cli

import (
	"os"
	"syscall"
)

// passedOn are the events of a console that go to the command: Ctrl-C and Ctrl-Break (SIGINT), and its
// closing (SIGTERM).
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// shell runs a string. Without /S, cmd would take quotes off some strings and not off others.
var shell = []string{"cmd", "/S", "/C"}
