//go:build unix

// Command picture draws docs/img/run.svg: it runs dlock in a terminal, and draws what that shows.
// make picture calls it.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: picture FILE")
		os.Exit(64)
	}
	err := picture(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func picture(file string) error {
	dir, err := os.MkdirTemp("", "dlock-picture-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	err = build(dir)
	if err != nil {
		return err
	}
	text, err := record(dir, "")
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(draw(text)), 0o644)
}
