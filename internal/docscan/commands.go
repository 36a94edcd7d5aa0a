package docscan

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A Command is a line for a shell.
type Command struct {
	Page string
	Line int
	Text string // without its comment
	Span bool   // it is part of a sentence, and may be only the name of a command
}

func (c Command) String() string { return Block{Page: c.Page, Line: c.Line}.String() + ": " + c.Text }

// Commands returns the commands of all pages and comments, and the recipes of the Makefile.
func Commands(root string) (commands []Command, err error) {
	err = eachPage(root, func(page, text string) error {
		blocks, prose, err := split(page, text)
		for _, b := range blocks {
			commands = append(commands, b.Commands()...)
		}
		commands = append(commands, spans(page, prose)...)
		return err
	})
	if err != nil {
		return nil, err
	}
	comments, err := Comments(root)
	for _, b := range comments {
		commands = append(commands, b.Commands()...)
	}
	if err != nil {
		return nil, err
	}
	recipes, err := recipes(root)
	return append(commands, recipes...), err
}

// Commands returns the lines of a sh block, and those of a console block that have a prompt.
func (b Block) Commands() (commands []Command) {
	n := b.Line - 1
	for line := range strings.Lines(b.Text) {
		n++
		text, prompt := strings.CutPrefix(line, "$ ")
		text = uncommented(text)
		if text != "" && (b.Lang == "sh" || b.Lang == "console" && prompt) {
			commands = append(commands, Command{Page: b.Page, Line: n, Text: text})
		}
	}
	return commands
}

var span = regexp.MustCompile("`([^`]+)`")

// spans returns the commands in the sentences of a page.
func spans(page, prose string) (commands []Command) {
	line := 1
	for paragraph := range strings.SplitSeq(prose, "\n\n") {
		for _, at := range span.FindAllStringSubmatchIndex(paragraph, -1) {
			text := strings.Join(strings.Fields(paragraph[at[2]:at[3]]), " ")
			if program.MatchString(text) {
				n := line + strings.Count(paragraph[:at[0]], "\n")
				commands = append(commands, Command{Page: page, Line: n, Text: text, Span: true})
			}
		}
		line += strings.Count(paragraph, "\n") + 2
	}
	return commands
}

// recipes returns the lines of the Makefile that make runs.
func recipes(root string) (commands []Command, err error) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line, ok := strings.CutPrefix(line, "\t")
		if ok {
			line = strings.NewReplacer("$(GO)", "go", "$$", "$").Replace(strings.TrimLeft(line, "-@"))
			commands = append(commands, Command{Page: "Makefile", Line: n, Text: strings.TrimSpace(line)})
		}
	}
	return commands, err
}

// uncommented removes the comment and the space around a line.
func uncommented(line string) string {
	quote := rune(0)
	for i, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '#' && (i == 0 || line[i-1] == ' '):
			return strings.TrimSpace(line[:i])
		}
	}
	return strings.TrimSpace(line)
}

// Words splits a simple command into its words, without their quotes.
func Words(command string) (words []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, c := range command {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, begun = c, true
		case quote == 0 && c == ' ':
			end()
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	end()
	return words
}
