package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decode reads a file into cfg. It returns the names of the environment variables for the fields
// that the file sets.
func decode(raw []byte, ext string, cfg *Config) (map[string]bool, error) {
	switch ext {
	case ".yaml", ".yml":
		return decodeYAML(raw, cfg)
	case ".json":
		return decodeJSON(raw, cfg)
	}
	return nil, fmt.Errorf("the name ends in %q, and not in .yaml, .yml or .json", ext)
}

func decodeYAML(raw []byte, cfg *Config) (map[string]bool, error) {
	var doc document
	err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc.root)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.New(syntaxError(err.Error()))
	}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(cfg); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(doc.explain(err))
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return doc.variables(), nil
}

// A document is a parsed file.
type document struct{ root yaml.Node }

// each visits the keys of all mappings, with the path of their parents.
func (d *document) each(visit func(path string, key, value *yaml.Node)) {
	var walk func(path string, n *yaml.Node)
	walk = func(path string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			for _, child := range n.Content {
				walk(path, child)
			}
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			visit(path+key.Value, key, value)
			walk(path+key.Value+"_", value)
		}
	}
	walk("", &d.root)
}

// variables follows aliases and merges, so it is only for a document that could be decoded: in
// other documents these may be endless.
func (d *document) variables() map[string]bool {
	names := map[string]bool{}
	var walk func(path string, n *yaml.Node)
	walk = func(path string, n *yaml.Node) {
		switch n.Kind {
		case yaml.AliasNode:
			walk(path, n.Alias)
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				key, value := resolved(n.Content[i]), n.Content[i+1]
				if key.ShortTag() == "!!merge" {
					walk(path, value)
					continue
				}
				if isSet(resolved(value)) {
					names[EnvPrefix+strings.ToUpper(path+key.Value)] = true
				}
				walk(path+key.Value+"_", value)
			}
		default: // a document, or the mappings that are merged
			for _, child := range n.Content {
				walk(path, child)
			}
		}
	}
	walk("", &d.root)
	return names
}

func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// isSet reports whether a value is more than null or nothing.
func isSet(n *yaml.Node) bool {
	if n.Kind == yaml.ScalarNode {
		return n.Value != "" && n.ShortTag() != "!!null"
	}
	return len(n.Content) > 0
}

// The errors of the YAML library contain values, in many forms. Only the parts that are known not
// to be values are used.
var (
	atLine    = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)
	unknown   = regexp.MustCompile(`(?s)^field (.*) not found in type \S+$`)
	mismatch  = regexp.MustCompile(`(?s)^cannot unmarshal (\S+) .*into (\S+)$`)
	twice     = regexp.MustCompile(`(?s)^mapping key .* already defined at line (\d+)$`)
	fieldName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)
	coreTag   = regexp.MustCompile(`^!!(str|int|float|bool|seq|map|null|timestamp|binary|merge)$`)
)

// problems lists the fixed beginnings of the errors of the scanner and the parser.
var problems = []string{
	"did not find expected ", "could not find expected ", "found ", "mapping values are not allowed", "mapping keys are not allowed",
	"block sequence entries are not allowed", "block mapping entries are not allowed", "control characters are not allowed",
	"exceeded max depth", "document contains excessive aliasing", "map merge requires", "invalid leading UTF-8", "invalid trailing UTF-8",
	"invalid length of a UTF-8", "invalid Unicode", "incomplete UTF-8", "incomplete UTF-16", "unexpected low surrogate",
	"expected low surrogate", "input is too long",
}

// syntaxError describes what is wrong with a file that is not YAML.
func syntaxError(text string) string {
	where, what := "", strings.TrimPrefix(text, "yaml: ")
	if m := atLine.FindStringSubmatch(what); m != nil {
		where, what = "line "+m[1]+": ", m[2]
	}
	switch {
	case strings.HasPrefix(what, "unknown anchor"):
		return where + "a value begins with * and is the name of nothing: put it in quotes"
	case strings.HasPrefix(what, "cannot decode "), strings.HasPrefix(what, "!!binary value"):
		return where + "a value does not fit to the tag (!) before it: put it in quotes"
	}
	for _, p := range problems {
		if strings.HasPrefix(what, p) {
			return where + strings.Join(strings.Fields(what), " ")
		}
	}
	return where + "it is not valid YAML"
}

// explain describes what is wrong with a file that does not fit a Config.
func (d *document) explain(err error) string {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return syntaxError(err.Error())
	}
	var all []string
	for _, text := range wrong.Errors {
		m := atLine.FindStringSubmatch(text)
		if m == nil {
			m = []string{"", "?", ""}
		}
		all = append(all, "line "+m[1]+": "+d.misfit(m[1], m[2]))
	}
	return strings.Join(all, "; ")
}

func (d *document) misfit(line, text string) string {
	if m := unknown.FindStringSubmatch(text); m != nil {
		if fieldName.MatchString(m[1]) && d.isKey(line, m[1]) {
			return "field " + m[1] + " is not known"
		}
		return "a field is not known"
	}
	if m := mismatch.FindStringSubmatch(text); m != nil {
		from, to := m[1], m[2]
		if !coreTag.MatchString(from) {
			from = "of an own tag,"
		}
		if strings.Contains(to, ".") && to != "time.Duration" {
			to = "a section"
		}
		return "cannot unmarshal " + from + " a value into " + to
	}
	if m := twice.FindStringSubmatch(text); m != nil {
		return "a key is there again, after line " + m[1]
	}
	return "a value does not fit"
}

// isKey reports whether a name is written as a key in a line. It returns false for the value of an
// alias (*p: x) and for a key without a value, which may be the rest of a value that should be
// quoted, as in {password: abc,def}.
func (d *document) isKey(line, name string) bool {
	written, bare := false, false
	d.each(func(_ string, key, value *yaml.Node) {
		if key.Kind == yaml.ScalarNode && key.Value == name && fmt.Sprint(key.Line) == line {
			written = true
			bare = bare || value.Kind == yaml.ScalarNode && !isSet(value)
		}
	})
	return written && !bare
}
