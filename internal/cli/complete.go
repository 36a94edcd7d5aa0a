package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/clog"
)

// completions is how many keys a shell is given at most.
const completions = 200

// completesKey has the shell complete the first argument of cmd with keys that are
// held.
func (w *app) completesKey(cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return w.completeKey(cmd, args, begun)
	}
	return cmd
}

// completesFlags has the shell complete the schemes of backends, and no files where a flag has a number or a duration.
func (w *app) completesFlags(root *cobra.Command) {
	_ = root.RegisterFlagCompletionFunc("backend", w.completeBackend)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			switch {
			case f.Name == "backend": // ui has its own
				_ = c.RegisterFlagCompletionFunc(f.Name, w.completeBackend)
			case f.Value.Type() != "string" || slices.Contains([]string{"after", "key", "listen", "allow-host"}, f.Name):
				_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
			}
		})
	}
}

// completeBackend lists what the URL of a backend begins with.
func (w *app) completeBackend(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	urls := []cobra.Completion{"file:///"}
	for s := range w.schemes {
		if s != ConfigScheme {
			urls = append(urls, s+"://")
		}
	}
	slices.Sort(urls)
	urls = slices.DeleteFunc(urls, func(u string) bool { return !strings.HasPrefix(u, begun) })
	return urls, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeKey lists keys, in time or not at all, and says nothing of what goes wrong.
func (w *app) completeKey(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	cmd.SetContext(ctx)
	s, err := w.connect(cmd, clog.Logger{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer func() { _ = s.close() }()
	return s.keysLike(ctx, begun), cobra.ShellCompDirectiveNoFileComp
}

func (s *session) keysLike(ctx context.Context, begun string) []cobra.Completion {
	l, err := s.locks()
	if err != nil {
		return nil
	}
	var keys []cobra.Completion
	_, _ = l.Pages(ctx, begun, "", completions, func(page []string) error {
		for _, k := range page {
			if !strings.ContainsFunc(k, lockreader.Hidden) {
				keys = append(keys, k)
			}
		}
		return nil
	})
	return keys
}
