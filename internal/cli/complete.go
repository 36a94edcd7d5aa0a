package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/clog"
)

const (
	completeWithin = time.Second // a user has pressed a key, and waits
	completions    = 200
)

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
