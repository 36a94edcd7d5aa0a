package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ceyewan/genesis/internal/cli"
)

// writeDocs writes man pages to dir/man and completion scripts to dir/completions.
func writeDocs(dir string, at time.Time) error {
	if err := writeManPages(filepath.Join(dir, "man"), at); err != nil {
		return err
	}
	return writeCompletions(filepath.Join(dir, "completions"))
}

func writeManPages(dir string, at time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Command()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	return eachCommand(root, func(c *cobra.Command) error {
		c.Long, c.Example = asMarkdown(c.Long), strings.TrimRight(c.Example, "\n")
		var page bytes.Buffer
		header := &doc.GenManHeader{Section: "1", Source: "dlock", Manual: "Genesis DLock", Date: &at}
		if err := doc.GenMan(c, header, &page); err != nil {
			return err
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		return os.WriteFile(filepath.Join(dir, name), withTopics(c, page.Bytes()), 0o644)
	})
}

// withTopics adds the help topics of a command to what its page refers to, which cobra leaves out.
func withTopics(c *cobra.Command, page []byte) []byte {
	const see = ".SH SEE ALSO\n"
	for _, topic := range c.Commands() {
		if topic.IsAdditionalHelpTopicCommand() {
			name := strings.ReplaceAll(topic.CommandPath(), " ", "-")
			page = bytes.Replace(page, []byte(see), []byte(see+`\fB`+name+`(1)\fP, `), 1)
		}
	}
	return page
}

// eachCommand calls f for the commands that users see.
func eachCommand(c *cobra.Command, f func(*cobra.Command) error) error {
	if c.Hidden || c.Name() == "help" {
		return nil
	}
	for _, sub := range c.Commands() {
		if err := eachCommand(sub, f); err != nil {
			return err
		}
	}
	return f(c)
}

// asMarkdown makes tables of a help text, whose lines are indented, blocks that keep their lines.
func asMarkdown(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.SplitSeq(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented != inside && line != "" {
			b.WriteString("\n")
			inside = indented
		}
		if indented {
			line = "    " + strings.TrimPrefix(line, "  ")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func writeCompletions(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Command()
	for name, write := range map[string]func(io.Writer) error{
		"dlock.bash": func(w io.Writer) error { return cli.BashCompletion(root, w, true) },
		"dlock.zsh":  root.GenZshCompletion,
		"dlock.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
		"dlock.ps1":  root.GenPowerShellCompletionWithDesc,
	} {
		var script bytes.Buffer
		if err := write(&script); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), script.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
