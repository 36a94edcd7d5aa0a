package event

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
)

// A Tail reads a log while others append to it, each line once.
type Tail struct {
	file *os.File
	rest []byte // the beginning of a line
}

// Follow opens a log from its beginning.
func Follow(path string) (*Tail, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Tail{file: f}, nil
}

// Next returns what was appended since the last call, in the order of the file.
func (t *Tail) Next() (all []Event, err error) {
	fresh, err := io.ReadAll(t.file)
	if err != nil {
		return nil, err
	}
	text := slices.Concat(t.rest, fresh)
	for {
		line, after, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			t.rest = bytes.Clone(text)
			return all, nil
		}
		text = after
		var e Event
		if json.Unmarshal(line, &e) == nil { // the last line of a process that was killed may be torn
			all = append(all, e)
		}
	}
}

// Close closes the file.
func (t *Tail) Close() error { return t.file.Close() }
