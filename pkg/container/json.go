package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// decodeJSON reads JSON into the nodes of a YAML document, so that both formats have the same types
// and errors. Parsed as YAML text, JSON would mean something else in places: "\/", surrogates,
// tabs.
func decodeJSON(raw []byte, cfg *Config) (map[string]bool, error) {
	r := jsonReader{raw: bytes.TrimPrefix(raw, []byte("\ufeff"))}
	if len(bytes.TrimSpace(r.raw)) == 0 {
		return nil, nil
	}
	if !utf8.Valid(r.raw) {
		return nil, errors.New("it is not UTF-8")
	}
	var whole json.RawMessage
	err := json.Unmarshal(r.raw, &whole)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) { // its text has a part of a value
		return nil, fmt.Errorf("line %d: it is not valid JSON, or more than one document", r.line(syntax.Offset))
	}
	if err != nil {
		return nil, errors.New("it is not valid JSON")
	}
	r.decoder = json.NewDecoder(bytes.NewReader(r.raw))
	r.decoder.UseNumber()
	root, err := r.value()
	if err != nil {
		return nil, err
	}
	doc := document{yaml.Node{Kind: yaml.DocumentNode, Line: root.Line, Content: []*yaml.Node{root}}}
	if problems := misfits(root, reflect.TypeOf(*cfg)); len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	if err := doc.root.Decode(cfg); err != nil {
		return nil, errors.New(doc.explain(err))
	}
	return doc.variables(), nil
}

// A jsonReader reads JSON that is known to be valid.
type jsonReader struct {
	raw     []byte
	decoder *json.Decoder
}

// line returns the line of the byte before an offset.
func (r *jsonReader) line(offset int64) int {
	return 1 + bytes.Count(r.raw[:max(0, min(offset, int64(len(r.raw)))-1)], []byte("\n"))
}

func (r *jsonReader) value() (*yaml.Node, error) {
	before := r.decoder.InputOffset()
	token, err := r.decoder.Token()
	if err != nil {
		return nil, errors.New("it is not valid JSON")
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line(r.decoder.InputOffset())}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return n, r.object(n)
		}
		return n, r.list(n)
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
		if isChanged(r.raw[before:r.decoder.InputOffset()], t) {
			return nil, fmt.Errorf("line %d: a string has half a character (\\ud800 to \\udfff)", n.Line)
		}
	case json.Number:
		n.Tag, n.Value = "!!int", t.String()
		if _, err := t.Int64(); err != nil {
			n.Tag = "!!float"
		}
		if _, err := t.Float64(); err != nil {
			return nil, fmt.Errorf("line %d: a number is out of range", n.Line)
		}
	case bool:
		n.Tag, n.Value = "!!bool", fmt.Sprint(t)
	default:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

func (r *jsonReader) list(n *yaml.Node) error {
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	for r.decoder.More() {
		item, err := r.value()
		if err != nil {
			return err
		}
		n.Content = append(n.Content, item)
	}
	return r.end()
}

// object reads the members of an object. It refuses duplicate names, of which encoding/json would
// take the last.
func (r *jsonReader) object(n *yaml.Node) error {
	n.Kind, n.Tag = yaml.MappingNode, "!!map"
	lines := map[string]int{}
	for r.decoder.More() {
		key, err := r.value()
		if err != nil {
			return err
		}
		if first, twice := lines[key.Value]; twice {
			return fmt.Errorf("line %d: a key is there again, after line %d", key.Line, first)
		}
		lines[key.Value] = key.Line
		value, err := r.value()
		if err != nil {
			return err
		}
		n.Content = append(n.Content, key, value)
	}
	return r.end()
}

func (r *jsonReader) end() error {
	_, err := r.decoder.Token()
	return err
}

// isChanged reports whether encoding/json has replaced half a surrogate pair with U+FFFD.
func isChanged(raw []byte, decoded string) bool {
	const replacement = "\ufffd"
	written := bytes.Count(raw, []byte(replacement)) + bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))
	return strings.Count(decoded, replacement) > written
}

// misfits returns what decoding a node would accept: unknown keys, and numbers with a fraction for
// integers.
func misfits(n *yaml.Node, t reflect.Type) (found []string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Int && n.Tag == "!!float" {
		return []string{fmt.Sprintf("line %d: cannot unmarshal !!float a value into int", n.Line)}
	}
	if t.Kind() != reflect.Struct || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field, known := fieldOf(t, key.Value)
		switch {
		case known:
			found = append(found, misfits(value, field)...)
		case fieldName.MatchString(key.Value):
			found = append(found, fmt.Sprintf("line %d: field %s is not known", key.Line, key.Value))
		default:
			found = append(found, fmt.Sprintf("line %d: a field is not known", key.Line))
		}
	}
	return found
}

// fieldOf returns the type of the field with this name in files.
func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		tag, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if tag == name && tag != "" && tag != "-" {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}
