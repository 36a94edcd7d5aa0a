package connector

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A probe waits for the alert of a server that is silent no longer than its caller, and than the connector is open.
func TestProbeEndsWithItsContext(t *testing.T) {
	silent := httptest.NewTLSServer(http.NotFoundHandler()) // until it gets a request
	defer silent.Close()
	config := silent.Client().Transport.(*http.Transport).TLSClientConfig
	for name, probe := range map[string]func(cancelled context.Context) error{
		"caller": func(ctx context.Context) error {
			return (&dialer{t.Context(), config, time.Minute}).probe(ctx, silent.Listener.Addr().String())
		},
		"connector": func(ctx context.Context) error {
			return (&dialer{ctx, config, time.Minute}).probe(t.Context(), silent.Listener.Addr().String())
		},
	} {
		t.Run(name, func(t *testing.T) { endsWithItsContext(t, probe) })
	}
}

func endsWithItsContext(t *testing.T, probe func(context.Context) error) {
	within := alertWithin
	alertWithin = time.Minute
	defer func() { alertWithin = within }()
	for delay := 50 * time.Millisecond; ; delay *= 2 {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(delay, cancel)
		err := probe(ctx)
		if took := time.Since(began); took >= alertWithin {
			t.Fatalf("the probe took %v", took)
		}
		if err == nil {
			return
		}
		t.Logf("cancelled before the handshake had ended, after %v: %v", delay, err)
	}
}
