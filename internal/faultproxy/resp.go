package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// maxLength limits the lengths that a frame may announce, so that bytes that are not RESP do not
// make the proxy wait for gigabytes.
const maxLength = 512 << 20

var errMalformed = errors.New("not RESP")

var crlf = []byte("\r\n")

// readFrame reads one whole RESP2 or RESP3 value as it is on the wire, an attribute together with
// the value that it belongs to. With an error it returns the bytes that it had consumed. Streamed
// values, which Redis never sends, are malformed.
func readFrame(in *bufio.Reader) ([]byte, error) {
	var frame bytes.Buffer
	for need := 1; need > 0; need-- {
		line, err := readLine(in)
		frame.Write(line)
		if err != nil {
			return frame.Bytes(), err
		}
		body, values, err := announced(line)
		if err != nil {
			return frame.Bytes(), err
		}
		need += values
		// The buffer grows with the received bytes, not with the announced length.
		if _, err := io.CopyN(&frame, in, body); err != nil {
			return frame.Bytes(), err
		}
	}
	return frame.Bytes(), nil
}

// readLine reads a header line. It reads nothing if the first byte is not that of a header: such a
// line might never end.
func readLine(in *bufio.Reader) ([]byte, error) {
	first, err := in.Peek(1)
	if err != nil {
		return nil, err
	}
	if strings.IndexByte("+-:_#,($!=*~>%|", first[0]) < 0 {
		return nil, errMalformed
	}
	return in.ReadBytes('\n')
}

// announced returns what a header line announces: bytes that follow directly, and values that
// belong to the same frame.
func announced(line []byte) (body int64, values int, err error) {
	if !bytes.HasSuffix(line, crlf) {
		return 0, 0, errMalformed
	}
	if strings.IndexByte("$!=*~>%|", line[0]) < 0 {
		return 0, 0, nil // a scalar, complete in its line
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n < -1 || n > maxLength {
		return 0, 0, errMalformed
	}
	if n == -1 {
		return 0, 0, nil // the null of RESP2
	}
	switch line[0] {
	case '$', '!', '=':
		return int64(n + len(crlf)), 0, nil
	case '%':
		return 0, 2 * n, nil
	case '|':
		return 0, 2*n + 1, nil // an attribute is not a value itself
	default:
		return 0, n, nil
	}
}

// readCommand reads one command of a client: an array of bulk strings, or a
// line as typed by hand.
func readCommand(in *bufio.Reader) (frame []byte, args []string, err error) {
	first, err := in.Peek(1)
	if err != nil {
		return nil, nil, err
	}
	if first[0] != '*' {
		frame, err = in.ReadBytes('\n')
		return frame, strings.Fields(string(frame)), err
	}
	if frame, err = readFrame(in); err != nil {
		return frame, nil, err
	}
	args, ok := commandArgs(frame)
	if !ok {
		return frame, nil, errMalformed
	}
	return frame, args, nil
}

func commandArgs(frame []byte) ([]string, bool) {
	_, count, rest := arrayHead(frame)
	args := make([]string, 0, min(count, 64))
	for range count {
		arg, tail, ok := cutBulk(rest)
		if !ok {
			return nil, false
		}
		args, rest = append(args, arg), tail
	}
	return args, len(rest) == 0
}

// A shape is the part of a reply that is needed to identify it.
type shape struct {
	kind  byte   // the first byte
	count int    // elements of an array or push
	verb  string // its first element, if that is a bulk string
}

func shapeOf(frame []byte) shape {
	kind, count, rest := arrayHead(frame)
	verb, _, _ := cutBulk(rest)
	return shape{kind, count, verb}
}

// isError reports whether the reply is a RESP2 or RESP3 error.
func (s shape) isError() bool { return s.kind == '-' || s.kind == '!' }

// arrayHead cuts the header line off an array or push; for other frames it returns only the kind.
func arrayHead(frame []byte) (kind byte, count int, rest []byte) {
	kind = frame[0]
	if kind != '*' && kind != '>' {
		return kind, 0, nil
	}
	line, rest, _ := bytes.Cut(frame, crlf)
	count, err := strconv.Atoi(string(line[1:]))
	if err != nil || count < 0 {
		return kind, 0, nil
	}
	return kind, count, rest
}

// cutBulk cuts a bulk string off the beginning.
func cutBulk(b []byte) (text string, rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(b, crlf)
	if !ok || len(line) == 0 || line[0] != '$' {
		return "", nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < 0 || len(rest) < n+len(crlf) {
		return "", nil, false
	}
	return string(rest[:n]), rest[n+len(crlf):], true
}
