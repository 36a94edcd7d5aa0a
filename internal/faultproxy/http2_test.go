package faultproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
)

const (
	pathA = "/service/A"
	pathB = "/service/B"
)

// A wire is a connection through a proxy, with the test at both ends. It first writes frames into a
// buffer, to compare what goes in and comes out.
type wire struct {
	proxy          *faultproxy.Proxy
	client, server net.Conn
	buffer         bytes.Buffer
	framer         *http2.Framer
	headers        bytes.Buffer
	encoder        *hpack.Encoder
}

func newWire(t *testing.T) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	w := &wire{proxy: testenv.Proxy(t, listener.Addr().String())}
	w.client, _ = dial(t, w.proxy.Addr())
	w.server, err = listener.Accept()
	check(t, err)
	t.Cleanup(func() { w.server.Close() })
	check(t, w.server.SetDeadline(time.Now().Add(patience)))
	w.framer = http2.NewFramer(&w.buffer, nil)
	w.encoder = hpack.NewEncoder(&w.headers)
	return w
}

// block returns the compressed headers of a call; headers that were sent before are sent as
// references.
func (w *wire) block(t *testing.T, path string) []byte {
	t.Helper()
	w.headers.Reset()
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "test"},
		{Name: "grpc-timeout", Value: "1S"},
	} {
		check(t, w.encoder.WriteField(field))
	}
	return bytes.Clone(w.headers.Bytes())
}

// call writes a whole call into the buffer.
func (w *wire) call(t *testing.T, stream uint32, path string) {
	t.Helper()
	check(t, w.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: w.block(t, path), EndHeaders: true,
	}))
	check(t, w.framer.WriteData(stream, true, []byte(path)))
}

// flush returns the content of the buffer and empties it.
func (w *wire) flush() []byte {
	defer w.buffer.Reset()
	return bytes.Clone(w.buffer.Bytes())
}

func (w *wire) send(t *testing.T, to net.Conn, sent []byte) {
	t.Helper()
	_, err := to.Write(sent)
	check(t, err)
}

func arrives(t *testing.T, at net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(at, got)
	if !bytes.Equal(got, want) {
		t.Fatalf("read %x, %v, want %x", got[:n], err, want)
	}
}

func (w *wire) expectCalls(t *testing.T, want map[string]int) {
	t.Helper()
	if got := w.proxy.GRPCCalls(); !maps.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}

func TestHTTP2PassesByteForByte(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.buffer.WriteString(http2.ClientPreface)
	check(t, w.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	w.call(t, 1, pathA)
	w.call(t, 3, pathA) // compressed to a few bytes
	long := w.block(t, pathB)
	check(t, w.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 5, BlockFragment: long[:2], PadLength: 7, Priority: http2.PriorityParam{Weight: 3},
	}))
	check(t, w.framer.WriteContinuation(5, true, long[2:]))
	check(t, w.framer.WriteDataPadded(5, true, bytes.Repeat([]byte{1}, 16<<10), make([]byte, 9)))
	check(t, w.framer.WriteRawFrame(0xbe, 0xff, 5, []byte("of no known type")))
	check(t, w.framer.WriteGoAway(0, http2.ErrCodeNo, nil))
	up := w.flush()
	go func() {
		for _, b := range up[:200] { // in pieces that are not frames
			_, _ = w.client.Write([]byte{b})
		}
		_, _ = w.client.Write(up[200:])
	}()
	arrives(t, w.server, up)
	w.expectCalls(t, map[string]int{pathA: 2, pathB: 1})
	if got := w.proxy.Requests(); got != 3 {
		t.Errorf("%d requests", got)
	}
	check(t, w.framer.WriteSettingsAck())
	check(t, w.framer.WriteData(1, true, bytes.Repeat([]byte{2}, 70<<10))) // three bytes of length
	down := w.flush()
	w.send(t, w.server, down)
	arrives(t, w.client, down)
	w.send(t, w.server, []byte("half"))
	w.server.Close()
	rest, err := io.ReadAll(w.client)
	if string(rest) != "half" || err != nil {
		t.Errorf("at the end %q, %v", rest, err)
	}
}

func TestHTTP2GivesUpOnGarbage(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.buffer.WriteString(http2.ClientPreface)
	w.call(t, 1, pathA)
	check(t, w.framer.WriteContinuation(7, true, nil)) // without headers before it
	w.buffer.WriteString("anything at all")
	sent := w.flush()
	w.send(t, w.client, sent)
	arrives(t, w.server, sent)
	w.expectCalls(t, map[string]int{pathA: 1})
}

func TestAlmostHTTP2IsBytes(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	for _, sent := range []string{"PRI ?", http2.ClientPreface} {
		w.send(t, w.client, []byte(sent))
		arrives(t, w.server, []byte(sent))
	}
}

func TestHTTP2ServerThatSpeaksFirst(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	check(t, w.framer.WriteSettings())
	down := w.flush()
	w.send(t, w.server, down[:4])
	arrives(t, w.client, down[:4])
	w.buffer.WriteString(http2.ClientPreface)
	w.call(t, 1, pathA)
	up := w.flush()
	w.send(t, w.client, up)
	arrives(t, w.server, up)
	w.send(t, w.server, down[4:])
	arrives(t, w.client, down[4:])
	w.expectCalls(t, nil)
}

func TestDropGRPCDeliversNothingOfTheAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*http2.Framer) error{
		"headers": func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x88}, EndHeaders: true})
		},
		"data":  func(f *http2.Framer) error { return f.WriteData(3, true, []byte("answer")) },
		"reset": func(f *http2.Framer) error { return f.WriteRSTStream(3, http2.ErrCodeInternal) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			w.proxy.DropGRPC(pathA, 1)
			w.buffer.WriteString(http2.ClientPreface)
			w.call(t, 1, pathB)
			w.call(t, 3, pathA)
			w.call(t, 5, pathA)
			up := w.flush()
			w.send(t, w.client, up)
			arrives(t, w.server, up)
			check(t, w.framer.WriteWindowUpdate(3, 100)) // is not an answer
			check(t, w.framer.WriteData(1, true, []byte("answer")))
			check(t, w.framer.WriteData(5, true, []byte("answer")))
			before := w.flush()
			check(t, answer(w.framer))
			w.send(t, w.server, append(before, w.flush()...))
			arrives(t, w.client, before)
			if rest, err := bufio.NewReader(w.client).ReadByte(); err == nil || timedOut(err) {
				t.Errorf("instead of the end %x, %v", rest, err)
			}
		})
	}
}

// seen reads a frame at the server and describes it.
func seen(t *testing.T, at *http2.Framer) string {
	t.Helper()
	frame, err := at.ReadFrame()
	check(t, err)
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		text := fmt.Sprint("call ", f.StreamID, " ", f.PseudoValue("path"))
		for _, field := range f.RegularFields() {
			text += " " + field.Name + "=" + field.Value
		}
		return text
	case *http2.DataFrame:
		return fmt.Sprintf("data %d %s %v", f.StreamID, f.Data(), f.StreamEnded())
	default:
		return fmt.Sprint(frame)
	}
}

func TestHoldGRPCLetsOthersPass(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.buffer.WriteString(http2.ClientPreface)
	w.call(t, 1, pathB) // what later calls refer to
	w.send(t, w.client, w.flush())
	arrives(t, w.server, []byte(http2.ClientPreface))
	server := http2.NewFramer(nil, w.server)
	server.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	expect := func(frames ...string) {
		t.Helper()
		for _, want := range frames {
			if got := seen(t, server); got != want {
				t.Fatalf("the server got %q, want %q", got, want)
			}
		}
	}
	const timeout = " grpc-timeout=1S"
	expect("call 1 "+pathB+timeout, "data 1 "+pathB+" true")

	release := w.proxy.HoldGRPC(pathA, 1)
	w.call(t, 3, pathA)
	w.call(t, 5, pathB)
	w.call(t, 7, pathA)
	w.send(t, w.client, w.flush())
	expect("call 3 " + pathA) // which may take its time from here on
	expect("call 5 "+pathB+timeout, "data 5 "+pathB+" true")
	expect("call 7 "+pathA+timeout, "data 7 "+pathA+" true")

	check(t, w.framer.WriteRSTStream(3, http2.ErrCodeCancel)) // must not overtake
	check(t, w.framer.WriteRSTStream(5, http2.ErrCodeCancel))
	w.send(t, w.client, w.flush())
	w.client.Close()
	expect("[FrameHeader RST_STREAM stream=5 len=4]")
	release()
	release()
	expect("data 3 " + pathA + " true")
	check(t, w.server.SetReadDeadline(time.Now().Add(soon)))
	if _, err := server.ReadFrame(); !timedOut(err) {
		t.Errorf("before it has answered the server sees %v", err)
	}
	check(t, w.server.SetReadDeadline(time.Now().Add(patience)))
	check(t, w.framer.WriteData(3, true, []byte("answer")))
	w.send(t, w.server, w.flush())
	if _, err := server.ReadFrame(); err == nil || timedOut(err) {
		t.Errorf("after the answer the server sees %v", err)
	}
}
