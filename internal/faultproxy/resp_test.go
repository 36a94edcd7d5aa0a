package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// whole lists complete values.
var whole = []string{
	"+OK\r\n", "-ERR no\r\n", ":42\r\n", "_\r\n", "#t\r\n", ",3.14\r\n", "(123456789012345678901234567890\r\n",
	"$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
	"$4\r\n\r\n\r\n\r\n", // the bytes of a bulk string may look like ends of lines
	"!8\r\nERR a\r\nb\r\n", "=7\r\ntxt:abc\r\n",
	"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
	"~2\r\n+a\r\n+b\r\n",
	"%2\r\n+k\r\n:1\r\n+l\r\n*2\r\n:1\r\n_\r\n",
	">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$3\r\nhey\r\n",
	"|1\r\n+ttl\r\n:3600\r\n$5\r\nvalue\r\n",
	"*2\r\n|1\r\n+x\r\n:1\r\n$1\r\na\r\n$1\r\nb\r\n",
	"*1\r\n%0\r\n",
}

func TestFramesAreCutWhereTheyEnd(t *testing.T) {
	all := strings.Join(whole, "")
	for name, in := range map[string]io.Reader{
		"at once":      strings.NewReader(all),
		"byte by byte": iotest.OneByteReader(strings.NewReader(all)),
	} {
		t.Run(name, func(t *testing.T) {
			r := bufio.NewReader(in)
			for _, want := range whole {
				if got, err := readFrame(r); string(got) != want || err != nil {
					t.Fatalf("got %q, %v, want %q", got, err, want)
				}
			}
			if _, err := readFrame(r); !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
		})
	}
}

func TestUnfinishedFrames(t *testing.T) {
	for _, frame := range whole {
		for n := 1; n < len(frame); n++ {
			got, err := readFrame(bufio.NewReader(strings.NewReader(frame[:n])))
			if string(got) != frame[:n] || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q of %q: %q, %v", frame[:n], frame, got, err)
			}
		}
	}
}

func TestMalformedFrames(t *testing.T) {
	for _, bytes := range []string{"hello\r\n", "$x\r\n", "$-2\r\n", "*?\r\n", "$9999999999\r\n", "+no return\n"} {
		got, err := readFrame(bufio.NewReader(strings.NewReader(bytes)))
		if !errors.Is(err, errMalformed) || !strings.HasPrefix(bytes, string(got)) {
			t.Errorf("%q: %q, %v", bytes, got, err)
		}
	}
}

func TestCommands(t *testing.T) {
	in := bufio.NewReader(strings.NewReader("*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\nset k v\r\n*0\r\n*1\r\n:1\r\n"))
	for _, want := range [][]string{{"GET", "a\r\nb"}, {"set", "k", "v"}, {}} {
		if _, got, err := readCommand(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if _, _, err := readCommand(in); !errors.Is(err, errMalformed) {
		t.Errorf("a number as a word: %v", err)
	}
}

// FuzzReadFrame: for any input, no bytes are added and none are lost.
func FuzzReadFrame(f *testing.F) {
	for _, frame := range whole {
		f.Add([]byte(frame))
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		in := bufio.NewReader(strings.NewReader(string(bytes)))
		frame, err := readFrame(in)
		rest, _ := io.ReadAll(in)
		if string(frame)+string(rest) != string(bytes) {
			t.Errorf("%q became %q and %q", bytes, frame, rest)
		}
		if err == nil {
			shapeOf(frame)
			commandArgs(frame)
		}
	})
}
