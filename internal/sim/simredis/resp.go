package simredis

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// readValue reads one value of either protocol and returns its bytes.
func readValue(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	err := copyValue(&raw, r)
	return raw.Bytes(), err
}

func copyValue(raw *bytes.Buffer, r *bufio.Reader) error {
	line, err := r.ReadBytes('\n')
	raw.Write(line)
	if err != nil {
		return err
	}
	if len(line) < 3 {
		return fmt.Errorf("no value of Redis: %q", line)
	}
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return nil
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return fmt.Errorf("no value of Redis: %q", line)
	}
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return nil
		}
		_, err = io.CopyN(raw, r, int64(n)+2)
		return err
	case '%', '|':
		n *= 2
	}
	for range n {
		if err := copyValue(raw, r); err != nil {
			return err
		}
	}
	return nil
}

// parseStrings reads an array of strings, as commands and messages are; nil if it is not one.
func parseStrings(raw []byte) (words []string) {
	r := bufio.NewReader(bytes.NewReader(raw))
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 4 || (line[0] != '*' && line[0] != '>') {
		return nil
	}
	n, _ := strconv.Atoi(line[1 : len(line)-2])
	for range n {
		value, err := readValue(r)
		if err != nil || value[0] != '$' {
			return nil
		}
		_, text, _ := bytes.Cut(value, []byte("\r\n"))
		words = append(words, string(bytes.TrimSuffix(text, []byte("\r\n"))))
	}
	return words
}

func command(words ...string) []byte {
	return encode('*', words)
}

func encode(kind byte, words []string) []byte {
	var raw bytes.Buffer
	fmt.Fprintf(&raw, "%c%d\r\n", kind, len(words))
	for _, w := range words {
		fmt.Fprintf(&raw, "$%d\r\n%s\r\n", len(w), w)
	}
	return raw.Bytes()
}
