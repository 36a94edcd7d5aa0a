package cli

import (
	"bytes"
	_ "embed" // a function of the script
	"errors"
	"io"

	"github.com/spf13/cobra"
)

// initCompletion is what the script of bash needs of the package bash-completion.
//
//go:embed bashcompletion.bash
var initCompletion []byte

// safeWords makes the words of a line harmless, which the script of bash evaluates.
//
//go:embed bashcompletion_words.bash
var safeWords []byte

// needsPackage is the line of cobra's script that fails without the package.
const needsPackage = `    _get_comp_words_by_ref "$@" cur prev words cword` + "\n"

// hasWords is the line of cobra's script after which it has the words up to the cursor.
const hasWords = `    words=("${words[@]:0:$cword+1}")` + "\n"

// BashCompletion writes the script for bash. Unlike cobra's, it works without the package bash-completion, and runs
// nothing of the line that it completes.
func BashCompletion(root *cobra.Command, out io.Writer, descriptions bool) error {
	var script bytes.Buffer
	if err := root.GenBashCompletionV2(&script, descriptions); err != nil {
		return err
	}
	text := script.Bytes()
	for line, with := range map[string][]byte{needsPackage: initCompletion, hasWords: append([]byte(hasWords), safeWords...)} {
		if bytes.Count(text, []byte(line)) != 1 {
			return errors.New("the script of cobra has changed")
		}
		text = bytes.Replace(text, []byte(line), with, 1)
	}
	_, err := out.Write(text)
	return err
}

// completionCommand adds cobra's command with our script for bash.
func (w *app) completionCommand(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil { // it is not there without subcommands
		return
	}
	all := bash.Parent() // shows its help; a shell that it does not know is an error
	all.Args, all.SuggestionsMinimumDistance = noArgs, 2
	all.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	bash.Long = `Bash writes the completion script for bash, version 3 or later. It works with and without
the package bash-completion.

To load it into this shell:

	source <(dlock completion bash)

To load it into every new shell, add that line to ~/.bashrc. With the package, this does as well:

	dlock completion bash > ~/.local/share/bash-completion/completions/dlock`
	bash.RunE = func(cmd *cobra.Command, _ []string) error {
		without, err := cmd.Flags().GetBool("no-descriptions")
		if err != nil {
			return err
		}
		var script bytes.Buffer
		if err := BashCompletion(root, &script, !without); err != nil {
			return err
		}
		return written(w.stdout.Write(script.Bytes()))
	}
}
