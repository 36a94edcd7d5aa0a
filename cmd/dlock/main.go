// Command dlock runs programs under a lock, and shows locks to operators. See
// docs/cli.md, or run dlock help.
//
// With the build tag filesonly it knows no servers. That program is a quarter of
// the size, and starts in a third of the time.
package main

import (
	"os"

	"github.com/ceyewan/genesis/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], schemes(), sender())) }
