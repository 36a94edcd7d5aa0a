// Package cli is the command dlock: it runs programs under a lock, and shows locks
// to operators. It links no client of a server; whoever calls Main brings the
// backends.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// A app is everything that a command touches outside of itself.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	getenv         func(string) string
	schemes        map[string]Scheme
	send           MetricSender // nil: nowhere

	arguments []string
	help      *helpWriter // nil: nothing was written by cobra

	backend, config string // flags of every command
	verbose         bool
}

// Main runs the command with these arguments and returns its exit code. schemes
// are the backends that it can reach in addition to files; send may be nil.
func Main(args []string, schemes map[string]Scheme, send MetricSender) int {
	if len(args) > 0 && args[0] == guardianCommand {
		return guard(os.Stdin, args[1:])
	}
	w := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, schemes: schemes, send: send}
	root := w.root()
	root.SetArgs(args)
	w.arguments = args
	return w.exitCode(root.ExecuteContext(context.Background()))
}

// Command is the command with its subcommands, for what describes it: man pages and completions.
func Command() *cobra.Command {
	w := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	return w.root()
}

func (w *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "dlock",
		Short: "Run anything under a lock, on no server at all or on Redis or etcd",
		Long: `dlock runs a command while it holds a lock, and shows who holds which.

Without --backend, locks are files of this host: no server is needed. With it,
they are kept in Redis or etcd and hold for every host that uses the same server.`,
		Example: `  dlock run backup -- tar czf /backup/home.tgz /home
  dlock run --try nightly -- ./report.sh
  DLOCK_BACKEND=redis://localhost dlock run deploy -- make deploy
  dlock ls`,
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: 2,
		Version: version().String(),
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	w.help = &helpWriter{out: w.stdout}
	root.SetOut(w.help)
	root.SetErr(w.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%w", err) })
	flags := root.PersistentFlags()
	flags.StringVarP(&w.backend, "backend", "b", "", "where locks are kept, as a `URL`; dlock help backends lists them (DLOCK_BACKEND)")
	flags.StringVar(&w.config, "config", "", "a configuration `file` of the service instead of a URL (DLOCK_CONFIG)")
	flags.BoolVarP(&w.verbose, "verbose", "v", false, "write the log of the lock client to standard error")
	root.AddCommand(w.completesKey(w.runCommand()), w.lsCommand(), w.showCommand(), w.watchCommand(), w.evictCommand(), w.benchCommand(),
		w.doctorCommand(), w.versionCommand(), backendsTopic())
	root.AddCommand(w.pageCommands()...)
	w.completionCommand(root)
	helpCommand(root)
	w.completesFlags(root)
	checkArgs(root)
	for _, c := range root.Commands() {
		checkArgs(c)
	}
	return root
}

// noArgs refuses a command that does not exist, and names those that may be meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		hint = "; did you mean " + strings.Join(similar, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q%s", args[0], hint)
}

// checkArgs makes wrong arguments an error of usage.
func checkArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(cmd, "%w", err)
			}
			return nil
		}
	}
}

// helpCommand makes a topic that does not exist an error, which cobra does not.
func helpCommand(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return usage(root, "unknown help topic %q", strings.Join(args, " "))
		}
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
		return c.Help()
	}
}

// A helpWriter is where cobra writes. It keeps the error, which cobra reports in its own way or not at all.
type helpWriter struct {
	out io.Writer
	err error
}

// Write implements io.Writer.
func (h *helpWriter) Write(text []byte) (int, error) {
	if h.err == nil {
		_, h.err = h.out.Write(text)
	}
	return len(text), nil
}

// exitCode prints what went wrong, and what to return for it.
func (w *app) exitCode(err error) int {
	if err == nil && w.help != nil {
		err = written(0, w.help.err)
	}
	var e *exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		if e.err != nil {
			w.say("%v", e.err)
		}
		return e.code
	default: // of cobra: a command that does not exist
		w.say("%v", err)
		return ExitUsage
	}
}

// say writes a line for people to standard error. Errors of the lock client say
// themselves whose they are.
func (w *app) say(format string, args ...any) {
	text := unprefixed(fmt.Sprintf(format, args...))
	for line := range strings.SplitSeq("dlock: "+text, "\n") {
		fmt.Fprintln(w.stderr, safe(line)) // it may name an owner, who may be anybody
	}
}

// unprefixed is the text of an error without the name of the program, which its causes have as well.
func unprefixed(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "dlock: "), ": dlock: ", ": ")
}
