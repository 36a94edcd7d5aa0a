package connector

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers questions for SRV records, and returns a resolver that asks it.
func nameServer(t *testing.T, records map[string][]dnsmessage.SRVResource) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(answer(buf[:n], records), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func answer(question []byte, records map[string][]dnsmessage.SRVResource) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) == 0 {
		return nil
	}
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	found, known := records[m.Questions[0].Name.String()]
	switch {
	case known && found == nil:
		m.RCode = dnsmessage.RCodeServerFailure
	case !known:
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, r := range found {
		head := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeSRV, Class: dnsmessage.ClassINET, TTL: 1}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &r})
	}
	text, _ := m.Pack()
	return text
}

func TestDiscoverEtcd(t *testing.T) {
	member := func(name string, port uint16) dnsmessage.SRVResource {
		return dnsmessage.SRVResource{Priority: port, Port: port, Target: dnsmessage.MustNewName(name)}
	}
	resolver := nameServer(t, map[string][]dnsmessage.SRVResource{
		"_etcd-client._tcp.plain.test.":     {member("a.plain.test.", 2379), member("b.plain.test.", 2380)},
		"_etcd-client._tcp.both.test.":      {member("a.both.test.", 2379)},
		"_etcd-client-ssl._tcp.both.test.":  {member("a.both.test.", 2378)},
		"_etcd-client._tcp.fails.test.":     {member("a.fails.test.", 2379)},
		"_etcd-client-ssl._tcp.fails.test.": nil,
		"_etcd-client._tcp.none.test.":      {member(".", 0)},
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for domain, want := range map[string][]string{
		"plain.test": {"http://a.plain.test:2379", "http://b.plain.test:2380"},
		"both.test":  {"https://a.both.test:2378"},
	} {
		got, err := discover(ctx, resolver, domain)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q (%v)", domain, got, want, err)
		}
		if err := (&EtcdConfig{Endpoints: got}).Validate(); err != nil {
			t.Error(err)
		}
	}
	var unknown *net.DNSError
	if got, err := discover(ctx, resolver, "nothing.test"); !errors.Is(err, ErrUnreachable) || !errors.As(err, &unknown) || !unknown.IsNotFound {
		t.Errorf("a domain without records has %q, %v", got, err)
	}
	for _, domain := range []string{"fails.test", "none.test"} { // never without TLS because of a failure
		if got, err := discover(ctx, resolver, domain); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s has %q, %v", domain, got, err)
		}
	}
	for _, domain := range []string{"", "http://plain.test", "plain.test:1", "a b"} {
		if _, err := DiscoverEtcd(ctx, domain); !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%q: %v", domain, err)
		}
	}
}
