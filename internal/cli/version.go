package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// versionOf is what the build knows of itself.
type versionOf struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// What the linker is told where Go does not stamp a build itself, as in a git worktree:
// -X github.com/ceyewan/genesis/internal/cli.builtVersion=v0.1.0.
var builtVersion, builtRevision string

func (w *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := version()
			if asJSON {
				return writeJSON(w.stdout, v)
			}
			return written(fmt.Fprintln(w.stdout, v))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// String is one line for people.
func (v versionOf) String() string {
	var build []string
	for _, part := range []string{v.Revision, v.Time} {
		if part != "" {
			build = append(build, part)
		}
	}
	if v.Modified {
		build = append(build, "modified")
	}
	text := "dlock " + v.Version
	if len(build) > 0 {
		text += " (" + strings.Join(build, ", ") + ")"
	}
	return text + ", " + v.Go + ", " + v.Platform
}

func version() versionOf {
	v := versionOf{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	if v.Version == "(devel)" && builtVersion != "" {
		v.Version, v.Revision = builtVersion, builtRevision
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
