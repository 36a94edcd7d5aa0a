package store

import (
	"bufio"
	"fmt"
	"net"
	"sync"
)

// A Client talks to a Store. It may be used by several goroutines.
type Client struct {
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

// Values are both counters of a key.
type Values struct{ Fenced, Unfenced int64 }

// Dial connects to the Store on this socket.
func Dial(path string) (*Client, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, in: bufio.NewReader(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Read shows the counters of a key to the holder of this token.
func (c *Client) Read(key string, fence int64) (Values, error) {
	return c.ask(fmt.Sprintf("read %s %d", key, fence))
}

// Write adds one to what was read.
func (c *Client) Write(w Write, read Values) error {
	_, err := c.ask(fmt.Sprintf("write %s %d %s %d %d %d", w.Key, w.Fence, w.Attempt, w.Sent, read.Fenced, read.Unfenced))
	return err
}

func (c *Client) ask(line string) (v Values, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err = fmt.Fprintln(c.conn, line); err != nil {
		return v, err
	}
	answer, err := c.in.ReadString('\n')
	if err != nil {
		return v, err
	}
	_, err = fmt.Sscan(answer, &v.Fenced, &v.Unfenced)
	return v, err
}
