package connector_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ceyewan/genesis/pkg/connector"
)

// readsBack fails the test if a configuration without secrets is another one after it was
// written and read, as JSON or as YAML.
func readsBack[T any](t *testing.T, strip func(*T)) {
	t.Helper()
	formats := map[string]struct {
		write func(any) ([]byte, error)
		read  func([]byte, any) error
	}{"JSON": {json.Marshal, json.Unmarshal}, "YAML": {yaml.Marshal, yaml.Unmarshal}}
	for name, f := range formats {
		same := func(seed int64) bool {
			value, ok := quick.Value(reflect.TypeFor[T](), rand.New(rand.NewSource(seed)))
			if !ok {
				t.Fatal("no value")
			}
			cfg, ok := value.Interface().(T)
			if !ok {
				t.Fatal("another type")
			}
			strip(&cfg)
			text, err := f.write(cfg)
			if err != nil {
				t.Log(err)
				return false
			}
			var back T
			if err := f.read(text, &back); err != nil {
				t.Logf("%s: %v", text, err)
				return false
			}
			return fmt.Sprint(back) == fmt.Sprint(cfg)
		}
		if err := quick.Check(same, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// plain is text that YAML and JSON can carry.
func plain(s string) string { return fmt.Sprintf("%x", s) }

func plains(all []string) []string {
	for i, s := range all {
		all[i] = plain(s)
	}
	return all
}

func TestConfigsAreReadBack(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		readsBack(t, func(c *connector.RedisConfig) {
			c.Addr, c.Addrs, c.MasterName, c.Username, c.SentinelUsername = plain(c.Addr), plains(c.Addrs), plain(c.MasterName), plain(c.Username), plain(c.SentinelUsername)
			c.Password, c.SentinelPassword, c.TLS = "", "", nil
		})
	})
	t.Run("etcd", func(t *testing.T) {
		readsBack(t, func(c *connector.EtcdConfig) {
			c.Endpoints, c.Username, c.Password, c.TLS = plains(c.Endpoints), plain(c.Username), "", nil
		})
	})
	t.Run("redlock", func(t *testing.T) {
		readsBack(t, func(c *connector.RedlockConfig) {
			c.Addrs, c.Username, c.Password, c.TLS = plains(c.Addrs), plain(c.Username), "", nil
		})
	})
}

// Durations are text; a number has no unit.
func TestConfigsFromJSON(t *testing.T) {
	var redis connector.RedisConfig
	if err := json.Unmarshal([]byte(`{"addr":"a:1","dial_timeout":"7s","password":"p","tls":{"enabled":true}}`), &redis); err != nil ||
		redis.DialTimeout != 7*time.Second || redis.Password != "p" || redis.TLS == nil || !redis.TLS.Enabled {
		t.Errorf("%v, %v", redis, err)
	}
	text, err := json.Marshal(redis)
	if err != nil || !strings.Contains(string(text), `"dial_timeout":"7s"`) || strings.Contains(string(text), `"p"`) {
		t.Errorf("%s, %v", text, err)
	}
	for _, text := range []string{`{"dial_timeout":7}`, `{"dial_timeout":"7"}`, `{"connect_timeuot":"7s"}`, `[]`} {
		for _, cfg := range []any{&connector.RedisConfig{}, &connector.EtcdConfig{}, &connector.RedlockConfig{}} {
			if err := json.Unmarshal([]byte(text), cfg); err == nil {
				t.Errorf("%T reads %s", cfg, text)
			}
		}
	}
}

// A configuration that was shown has no password, and what stands for it is none.
func TestShownPasswordIsRefused(t *testing.T) {
	shown := func(cfg, back any) {
		t.Helper()
		text, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
	}
	var redis, sentinels connector.RedisConfig
	var etcd connector.EtcdConfig
	var redlock connector.RedlockConfig
	shown(connector.RedisConfig{Addr: "a:1", Password: "p"}, &redis)
	shown(connector.RedisConfig{Addrs: []string{"a:1"}, MasterName: "m", SentinelPassword: "p"}, &sentinels)
	shown(connector.EtcdConfig{Endpoints: []string{"a:1"}, Username: "u", Password: "p"}, &etcd)
	shown(connector.RedlockConfig{Addrs: []string{"a:1", "b:1", "c:1"}, Password: "p"}, &redlock)
	for _, cfg := range []interface{ Validate() error }{&redis, &sentinels, &etcd, &redlock} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "Password") {
			t.Errorf("%T: %v", cfg, err)
		}
	}
}
