package faultproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// isHTTP2 reports whether the client begins with the HTTP/2 preface. It waits for more bytes
// only while the received bytes could be the beginning of the preface.
func isHTTP2(in *bufio.Reader) bool {
	for n := range len(http2.ClientPreface) {
		if got, err := in.Peek(n + 1); err != nil || got[n] != http2.ClientPreface[n] {
			return false
		}
	}
	return true
}

// A frameReader reads what an HTTP/2 client sends, frame by frame, together with the bytes on the
// wire. It must see all of them, because headers are compressed relative to those of earlier calls.
type frameReader struct {
	framer *http2.Framer
	wire   bytes.Buffer // what the framer has consumed
}

func newFrameReader(in io.Reader) *frameReader {
	r := new(frameReader)
	r.framer = http2.NewFramer(nil, io.TeeReader(in, &r.wire))
	r.framer.ReadMetaHeaders = hpack.NewDecoder(hpackTable, nil)
	return r
}

// hpackTable is the table size that both sides assume unless the server announces another, which
// etcd does not.
const hpackTable = 4096

// next reads a frame; headers are returned whole, with their continuations. With an error it
// returns the bytes that it had consumed.
func (r *frameReader) next() (wire []byte, frame http2.Frame, err error) {
	frame, err = r.framer.ReadFrame()
	wire = bytes.Clone(r.wire.Bytes())
	r.wire.Reset()
	return wire, frame, err
}

// headersFrame returns a frame that can be read without the frames before it: sensitive fields are
// not kept for later reference.
func headersFrame(stream uint32, last bool, fields []hpack.HeaderField) []byte {
	var block, frame bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range fields {
		field.Sensitive = true
		_ = encoder.WriteField(field) // to memory, which does not fail
	}
	_ = http2.NewFramer(&frame, nil).WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: last, EndHeaders: true,
	})
	return frame.Bytes()
}

const frameHead = 9 // bytes before the payload of a frame

// readServerFrame reads one frame as it is on the wire. The proxy need not parse a server's frames
// any further.
func readServerFrame(in *bufio.Reader) ([]byte, error) {
	head, err := in.Peek(frameHead)
	if err != nil {
		rest, _ := io.ReadAll(io.LimitReader(in, int64(len(head))))
		return rest, err
	}
	payload := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	frame := make([]byte, frameHead+payload)
	n, err := io.ReadFull(in, frame)
	return frame[:n], err
}

// replied returns which call a server's frame answers, or 0 for none.
func replied(frame []byte) (stream uint32) {
	if len(frame) < frameHead {
		return 0
	}
	switch http2.FrameType(frame[3]) {
	case http2.FrameHeaders, http2.FrameData, http2.FrameRSTStream:
		return binary.BigEndian.Uint32(frame[5:]) &^ (1 << 31)
	default:
		return 0
	}
}
