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
	text, err := record("")
	if err == nil {
		err = os.WriteFile(os.Args[1], []byte(draw(text)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}
