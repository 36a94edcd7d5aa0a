package connector

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A dialer opens connections until its lifetime ends. Unlike the dialer of go-redis, it honors
// the context during the TLS handshake, and reports when TLS is the cause of a failure.
type dialer struct {
	lifetime context.Context
	tls      *tls.Config // nil without
	timeout  time.Duration
}

// keepAlive notices a peer that has vanished within half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.lifetime.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	defer context.AfterFunc(d.lifetime, cancel)() //nolint:contextcheck // whichever ends first
	nd := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := nd.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if d.tls == nil {
		return conn, nil
	}
	secured := tls.Client(conn, d.tlsFor(addr))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, handshakeError(err)
	}
	return secured, nil
}

// alertWithin is how soon a server reports that it rejects the client certificate. With TLS 1.3 the
// alert comes after the handshake, and data that the client writes meanwhile may make it miss the
// alert. It is a variable for tests.
var alertWithin = 200 * time.Millisecond

// explain dials again to find out why there is no connection. It returns nil if it finds no reason.
func (d *dialer) explain(ctx context.Context, addrs []string) error {
	causes := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { causes[i] = d.probe(ctx, addr) })
	}
	wg.Wait()
	return errors.Join(causes...)
}

func (d *dialer) probe(ctx context.Context, addr string) error {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := d.dial(ctx, network, addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if d.tls == nil {
		return nil
	}
	_ = conn.SetReadDeadline(time.Now().Add(alertWithin))
	end := func() { _ = conn.SetReadDeadline(time.Now()) }
	defer context.AfterFunc(ctx, end)()
	defer context.AfterFunc(d.lifetime, end)() //nolint:contextcheck // whichever ends first
	if _, err = conn.Read(make([]byte, 1)); isTLS(err) {
		return handshakeError(err)
	}
	return nil
}

func (d *dialer) tlsFor(addr string) *tls.Config {
	if d.tls.ServerName != "" {
		return d.tls
	}
	cfg := d.tls.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(addr)
	if strings.HasPrefix(addr, "/") { // as the client of etcd does for a socket
		cfg.ServerName = path.Base(addr)
	}
	return cfg
}

// handshakeError distinguishes a TLS failure from a network failure. Nothing was sent yet, and a
// retry is useless.
func handshakeError(err error) error {
	if !isTLS(err) && (netKind(err) != nil || errors.Is(err, context.Canceled)) {
		return err
	}
	return driver.Classify(typed(err, ErrTLS), driver.Fatal)
}
