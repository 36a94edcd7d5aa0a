package container_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A configuration without secrets that was written, as JSON or YAML, is what Load reads, and
// what encoding/json reads.
func TestConfigIsReadBack(t *testing.T) {
	tls := &connector.TLSConfig{Enabled: true, CAFile: "ca.pem", MinVersion: "1.3"}
	cfg := &container.Config{
		Log:   clog.Config{Level: "debug", Format: "json", AddSource: true},
		Redis: &connector.RedisConfig{Addrs: []string{"a:1", "b:1"}, Cluster: true, PoolSize: 7, DialTimeout: 750 * time.Millisecond, ReadTimeout: time.Second, WriteTimeout: 2 * time.Second, ConnectTimeout: time.Minute, TLS: tls},
		Etcd: &connector.EtcdConfig{
			TLS: tls, Endpoints: []string{"https://a:1"}, DialTimeout: time.Second, DialKeepAliveTime: 11 * time.Second, DialKeepAliveTimeout: 1500 * time.Millisecond, ConnectTimeout: 3 * time.Second, AutoSyncInterval: time.Minute,
		},
		Redlock: &connector.RedlockConfig{Addrs: []string{"a:1", "b:1", "c:1"}, DB: 3, TLS: tls, DialTimeout: time.Second, ConnectTimeout: 90 * time.Second},
		File:    &container.FileConfig{Dir: "/tmp/x", Shared: true, Network: true},
		DLock: &dlock.Config{
			Backend: dlock.BackendFile, Prefix: "p:", DefaultTTL: 7 * time.Second, RetryInterval: 50 * time.Millisecond, RenewInterval: 1234567 * time.Nanosecond, MaxRetries: 3, EnableReentrant: true, LocalBatch: 4,
		},
	}
	asJSON, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"a.json": asJSON, "a.yaml": asYAML} {
		back, err := container.Load(file(t, name, string(text)))
		if err != nil || !reflect.DeepEqual(back, cfg) {
			t.Errorf("%s: %+v, %v\n%s", name, back, err, text)
		}
	}
	var back container.Config
	if err := json.Unmarshal(asJSON, &back); err != nil || !reflect.DeepEqual(&back, cfg) {
		t.Errorf("%+v, %v\n%s", back, err, asJSON)
	}
}
