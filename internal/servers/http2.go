package servers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// speaksHTTP2 says whether the client begins with the preface of HTTP/2. It
// waits for more bytes only while those that came could be its beginning.
func speaksHTTP2(in *bufio.Reader) bool {
	for n := range len(http2.ClientPreface) {
		if got, err := in.Peek(n + 1); err != nil || got[n] != http2.ClientPreface[n] {
			return false
		}
	}
	return true
}

// A frameReader reads what a client of HTTP/2 sends, frame by frame, together
// with the bytes as they are on the wire. It has to see all of them, because
// headers are compressed against those of earlier calls.
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

// hpackTable is the size of the table that both sides assume unless the server
// announces another, which etcd does not.
const hpackTable = 4096

// next reads a frame; headers come whole, with their continuations. With an
// error it returns the bytes that it had consumed.
func (r *frameReader) next() (wire []byte, frame http2.Frame, err error) {
	frame, err = r.framer.ReadFrame()
	wire = bytes.Clone(r.wire.Bytes())
	r.wire.Reset()
	return wire, frame, err
}

// headersFrame is a frame that can be read without those before it: sensitive
// fields are not kept for later reference.
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

// readServerFrame reads one frame as it is on the wire. What a server sends
// need not be understood any further.
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

// replied says which call a server's frame gives an answer to, 0 for none.
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
