//go:build filesonly

package cli

import "github.com/spf13/cobra"

// pageCommands is empty: a web server would make the small program half as large again.
func (w *app) pageCommands() []*cobra.Command { return nil }
