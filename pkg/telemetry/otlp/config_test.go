package otlp_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/telemetry"
	"github.com/ceyewan/genesis/pkg/telemetry/otlp"
)

func TestValidate(t *testing.T) {
	for _, cfg := range []otlp.Config{
		{Endpoint: "localhost:4318"},
		{Endpoint: "[::1]:4318/base", Insecure: true, Headers: map[string]string{"authorization": secret}, Timeout: time.Second},
		{Endpoint: "otlp.example.com", Signals: []string{"traces", "metrics"}, TLS: &tls.Config{}},
	} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%v: %v", cfg, err)
		}
	}
	for _, cfg := range []otlp.Config{
		{},
		{Endpoint: "/v1"},
		{Endpoint: ":4318"},
		{Endpoint: "localhost:port"},
		{Endpoint: "http://localhost:4318"},
		{Endpoint: "user:s3cr3t@localhost:4318"},
		{Endpoint: "localhost:4318?key=s3cr3t"},
		{Endpoint: "localhost:4318#s3cr3t"},
		{Endpoint: "local host s3cr3t"},
		{Endpoint: "localhost:4318", Headers: map[string]string{"x": "s3cr3t\n"}},
		{Endpoint: "localhost:4318", Headers: map[string]string{"Bearer s3cr3t": "x"}},
		{Endpoint: "localhost:4318", Timeout: -1},
		{Endpoint: "localhost:4318", Signals: []string{"logs"}},
		{Endpoint: "localhost:4318", Insecure: true, TLS: &tls.Config{}},
	} {
		_, err := otlp.Options(cfg)
		if !errors.Is(err, telemetry.ErrInvalidConfig) {
			t.Errorf("%v: %v", cfg, err)
		} else if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the secret is in the error: %v", err)
		}
	}
}

func TestHeadersAreNotPrinted(t *testing.T) {
	cfg := otlp.Config{Endpoint: "localhost:4318", Headers: map[string]string{"authorization": secret}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&out, verb+"\n", cfg)
		fmt.Fprintf(&out, verb+"\n", cfg.Headers)
	}
	for _, format := range []string{"text", "json", "console"} {
		clog.New(&clog.Config{Format: format, Output: &out}).Info("m", clog.Any("cfg", cfg), clog.Any("headers", cfg.Headers))
	}
	if text, err := cfg.Headers.MarshalYAML(); err != nil {
		t.Error(err)
	} else {
		fmt.Fprintln(&out, text)
	}
	hex := fmt.Sprintf("%x", secret)
	if got := out.String(); strings.Contains(got, "s3cr3t") || strings.Contains(got, hex) {
		t.Errorf("the secret is in\n%s", got)
	} else if strings.Count(got, "authorization") != 19 {
		t.Errorf("the names are not in\n%s", got)
	}
}

func TestConfigFromJSON(t *testing.T) {
	var cfg otlp.Config
	text := `{"endpoint":"localhost:4318","insecure":true,"headers":{"authorization":"x"},"timeout":"1s","signals":["traces"]}`
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Endpoint != "localhost:4318" || !cfg.Insecure || cfg.Headers["authorization"] != "x" || cfg.Timeout != time.Second || cfg.Signals[0] != "traces" {
		t.Errorf("%v", cfg)
	}
}

// All but the values of headers, which are secret, is read from what was written.
func TestConfigIsReadBack(t *testing.T) {
	cfg := otlp.Config{Endpoint: "localhost:4318", Timeout: 1500 * time.Millisecond, Signals: []string{"traces"}, Headers: otlp.Headers{"a": "secret"}}
	text, err := json.Marshal(cfg)
	if err != nil || !strings.Contains(string(text), `"timeout":"1.5s"`) || strings.Contains(string(text), "secret") {
		t.Fatalf("%s, %v", text, err)
	}
	var back otlp.Config
	if err := json.Unmarshal(text, &back); err != nil || back.Timeout != cfg.Timeout || back.Endpoint != cfg.Endpoint || len(back.Headers) != 1 {
		t.Errorf("%v, %v", back, err)
	}
	for _, text := range []string{`{"timeout":10}`, `{"timeuot":"10s"}`} {
		if err := json.Unmarshal([]byte(text), &back); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}
