package connector_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
)

// An authority signs certificates; its own certificate is in a file.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key, a.file, _ = a.sign(template, "ca")
	return a
}

// issue returns the files of a certificate for this address that expires at ends.
func (a *authority) issue(host string, ends time.Time) (cert, key string) {
	a.t.Helper()
	_, _, cert, key = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host},
		IPAddresses: []net.IP{net.ParseIP(host)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, host)
	return cert, key
}

func (a *authority) sign(template *x509.Certificate, name string) (cert *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.check(err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	a.check(err)
	cert, err = x509.ParseCertificate(der)
	a.check(err)
	secret, err := x509.MarshalECPrivateKey(key)
	a.check(err)
	return cert, key, a.write(name+".crt", "CERTIFICATE", der), a.write(name+".key", "EC PRIVATE KEY", secret)
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	a.check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

func (a *authority) check(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// A front uses TLS with clients and plain bytes with the server behind it. Not every redis-server
// is built with TLS, and this way both kinds of server behave alike.
type front struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup
	mu       sync.Mutex
	taken    int
}

func newFront(t *testing.T, target, cert, key string, clients *authority) *front {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	if clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		cfg.ClientCAs.AddCert(clients.cert)
	}
	l, err := tls.Listen("tcp4", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{listener: l, target: target}
	f.wg.Go(f.accept)
	t.Cleanup(func() { l.Close(); f.wg.Wait() })
	return f
}

func (f *front) addr() string { return f.listener.Addr().String() }

func (f *front) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken
}

func (f *front) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.taken++
		f.mu.Unlock()
		f.wg.Go(func() { f.serve(client) })
	}
}

func (f *front) serve(client net.Conn) {
	defer client.Close()
	if client.(*tls.Conn).Handshake() != nil {
		return
	}
	server, err := net.Dial("tcp4", f.target)
	if err != nil {
		return
	}
	f.wg.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	_, _ = io.Copy(server, client)
	server.Close()
}

// A syncBuffer may be written to by several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// testTLS is the same for both kinds of server. open returns a connector to an address.
func testTLS(t *testing.T, server string, open func(t *testing.T, addr string, cfg *connector.TLSConfig) conn) {
	const host = "127.0.0.1"
	ca, other := newAuthority(t), newAuthority(t)
	later := time.Now().Add(time.Hour)
	cert, key := ca.issue(host, later)
	plain := newFront(t, server, cert, key, nil)
	mutual := newFront(t, server, cert, key, ca)
	expiredCert, expiredKey := newAuthorityLike(ca).issue(host, time.Now().Add(-time.Hour))
	expired := newFront(t, server, expiredCert, expiredKey, nil)
	strangeCert, strangeKey := newAuthorityLike(ca).issue("127.0.0.9", later)
	strange := newFront(t, server, strangeCert, strangeKey, nil)

	t.Run("trusted", func(t *testing.T) {
		mustConnect(t, open(t, plain.addr(), &connector.TLSConfig{CAFile: ca.file}))
		mustConnect(t, open(t, plain.addr(), &connector.TLSConfig{InsecureSkipVerify: true, MinVersion: "1.3"}))
		mustConnect(t, open(t, strange.addr(), &connector.TLSConfig{CAFile: ca.file, ServerName: "127.0.0.9"}))
		mustConnect(t, open(t, mutual.addr(), &connector.TLSConfig{CAFile: ca.file, CertFile: cert, KeyFile: key}))
	})
	t.Run("wrong CA", func(t *testing.T) {
		before, began := plain.connections(), time.Now()
		err := refused(t, open(t, plain.addr(), &connector.TLSConfig{CAFile: other.file}), connector.ErrTLS, atOnce)
		if cause := new(x509.UnknownAuthorityError); !errors.As(err, cause) {
			t.Errorf("no cause: %v", err)
		}
		if n := plain.connections() - before; n > 2*handful+reconnects(began) { // Connect and HealthCheck
			t.Errorf("%d connections", n)
		}
	})
	t.Run("system CAs", func(t *testing.T) {
		refused(t, open(t, plain.addr(), &connector.TLSConfig{Enabled: true}), connector.ErrTLS, atOnce)
	})
	t.Run("expired", func(t *testing.T) {
		err := refused(t, open(t, expired.addr(), &connector.TLSConfig{CAFile: ca.file}), connector.ErrTLS, atOnce)
		if cause := new(x509.CertificateInvalidError); !errors.As(err, cause) || cause.Reason != x509.Expired {
			t.Errorf("no cause: %v", err)
		}
	})
	t.Run("wrong host", func(t *testing.T) {
		err := refused(t, open(t, strange.addr(), &connector.TLSConfig{CAFile: ca.file}), connector.ErrTLS, atOnce)
		if cause := new(x509.HostnameError); !errors.As(err, cause) {
			t.Errorf("no cause: %v", err)
		}
	})
	t.Run("no certificate of ours", func(t *testing.T) {
		refused(t, open(t, mutual.addr(), &connector.TLSConfig{CAFile: ca.file}), connector.ErrTLS, atOnce)
	})
	t.Run("server without TLS", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := open(t, server, &connector.TLSConfig{CAFile: ca.file}).Connect(ctx)
		// Some servers close the connection, and Redis waits for the rest of what it takes for a command.
		if !errors.Is(err, connector.ErrTLS) && !errors.Is(err, connector.ErrUnreachable) && !errors.Is(err, connector.ErrTimeout) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("client without TLS", func(t *testing.T) {
		refused(t, open(t, plain.addr(), nil), connector.ErrUnreachable, atOnce)
	})
	t.Run("renewed certificate", func(t *testing.T) { renewedCertificate(t, ca, mutual.addr(), open) })
}

// newAuthorityLike signs with the same key, into other files.
func newAuthorityLike(a *authority) *authority {
	b := *a
	b.dir = a.t.TempDir()
	return &b
}

// renewedCertificate replaces an expired client certificate while the client is in use.
func renewedCertificate(t *testing.T, ca *authority, addr string, open func(t *testing.T, addr string, cfg *connector.TLSConfig) conn) {
	mine := newAuthorityLike(ca)
	cert, key := mine.issue("127.0.0.2", time.Now().Add(-time.Hour))
	c := open(t, addr, &connector.TLSConfig{CAFile: ca.file, CertFile: cert, KeyFile: key})
	refused(t, c, connector.ErrTLS, atOnce)
	mine.issue("127.0.0.2", time.Now().Add(time.Hour))
	// gRPC pauses before it tries again.
	testenv.Eventually(t, patience, "the new certificate is used", func() bool { return c.Connect(t.Context()) == nil })
}
