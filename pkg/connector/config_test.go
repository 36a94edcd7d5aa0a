package connector_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caarlos0/env/v11"
	"go.yaml.in/yaml/v3"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestRedisConfig(t *testing.T) {
	one := []string{"a:1"}
	for field, cfg := range map[string]connector.RedisConfig{
		"Addr or":                 {},
		"Addr and":                {Addr: "a:1", Addrs: one},
		"Addr is not":             {Addr: "localhost"},
		"Addr has":                {Addr: "localhost:http"},
		"Addr is a unix":          {Addr: "/run/redis.sock", TLS: &connector.TLSConfig{Enabled: true}},
		"Addrs[1]":                {Addrs: []string{"a:1", "redis://u:" + password + "@b:1"}},
		"MasterName and":          {Addrs: one, MasterName: "m", Cluster: true},
		"MasterName needs":        {Addr: "a:1", MasterName: "m"},
		"DB 1":                    {Addrs: []string{"a:1", "b:1"}, DB: 1},
		"DB -1":                   {Addr: "a:1", DB: -1},
		"Username":                {Addr: "a:1", Username: "u"},
		"SentinelUsername":        {Addrs: one, MasterName: "m", SentinelUsername: "u"},
		"SentinelPassword":        {Addr: "a:1", SentinelPassword: password},
		"PoolSize":                {Addr: "a:1", PoolSize: -1},
		"PoolSize 1073741824":     {Addr: "a:1", PoolSize: 1 << 30},
		"MinIdleConns 1073741824": {Addr: "a:1", MinIdleConns: 1 << 30},
		"MinIdleConns -1":         {Addr: "a:1", MinIdleConns: -1},
		"MinIdleConns 3":          {Addr: "a:1", MinIdleConns: 3, PoolSize: 2},
		"MaxRetries":              {Addr: "a:1", MaxRetries: -1},
		"DialTimeout":             {Addr: "a:1", DialTimeout: -1},
		"ReadTimeout 2562047h":    {Addr: "a:1", ReadTimeout: math.MaxInt64},
		"ReadTimeout":             {Addr: "a:1", ReadTimeout: 5},
		"WriteTimeout":            {Addr: "a:1", WriteTimeout: 5},
		"ConnectTimeout":          {Addr: "a:1", ConnectTimeout: 5},
		"TLS.MinVersion":          {Addr: "a:1", TLS: &connector.TLSConfig{MinVersion: "1.1"}},
		"TLS.CertFile and":        {Addr: "a:1", TLS: &connector.TLSConfig{KeyFile: "k"}},
		"TLS.CertFile or":         {Addr: "a:1", TLS: &connector.TLSConfig{KeyFile: "none", CertFile: "none"}},
		"TLS.CAFile cannot":       {Addr: "a:1", TLS: &connector.TLSConfig{CAFile: filepath.Join(t.TempDir(), "none")}},
		"TLS.CAFile has":          {Addr: "a:1", TLS: &connector.TLSConfig{CAFile: "doc.go"}},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := connector.NewRedis(&cfg)
			refusedConfig(t, field, err)
		})
	}
	for _, cfg := range []connector.RedisConfig{
		{Addr: "[::1]:6379"},
		{Addr: "/run/redis.sock"},
		{Addrs: one, DB: 1, TLS: &connector.TLSConfig{}},
		{Addrs: one, MasterName: "m", SentinelUsername: "u", SentinelPassword: password},
		{Addr: "a:1", Cluster: true},
	} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestEtcdConfig(t *testing.T) {
	for field, cfg := range map[string]connector.EtcdConfig{
		"Endpoints is":                     {},
		"Endpoints[0] is not":              {Endpoints: []string{"http://root:" + password + "@a:1"}},
		"Endpoints[1] has no":              {Endpoints: []string{"http://a:1", "http://b:2/path"}},
		"Endpoints[0] is nei":              {Endpoints: []string{"ftp://a:1"}},
		"Endpoints[1] has":                 {Endpoints: []string{"https://a:1", "http://b:1"}},
		"Endpoints[0] is http":             {Endpoints: []string{"http://a:1"}, TLS: &connector.TLSConfig{Enabled: true}},
		"Username":                         {Endpoints: []string{"a:1"}, Password: password},
		"TLS.MinVersion":                   {Endpoints: []string{"a:1"}, TLS: &connector.TLSConfig{MinVersion: "1"}},
		"TLS.CAFile":                       {Endpoints: []string{"a:1"}, TLS: &connector.TLSConfig{CAFile: "doc.go"}},
		"DialTimeout":                      {Endpoints: []string{"a:1"}, DialTimeout: 5},
		"ConnectTimeout":                   {Endpoints: []string{"a:1"}, ConnectTimeout: -1},
		"DialKeepAliveTime":                {Endpoints: []string{"a:1"}, DialKeepAliveTime: -1},
		"DialKeepAliveTimeout":             {Endpoints: []string{"a:1"}, DialKeepAliveTimeout: -1},
		"AutoSyncInterval":                 {Endpoints: []string{"a:1"}, AutoSyncInterval: 5},
		"Endpoints[0] is not the absolute": {Endpoints: []string{"unix://a:1"}},
		"Endpoints[0] is unix":             {Endpoints: []string{"unix:///run/etcd"}, TLS: &connector.TLSConfig{Enabled: true}},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := connector.NewEtcd(&cfg)
			refusedConfig(t, field, err)
		})
	}
}

// refusedConfig checks that the error names the field, and contains no password.
func refusedConfig(t *testing.T, field string, err error) {
	t.Helper()
	if !errors.Is(err, connector.ErrInvalidConfig) || xerrors.CodeOf(err) != "invalid_config" || !strings.Contains(err.Error(), ": "+field) {
		t.Errorf("got %v", err)
	}
	if err != nil && strings.Contains(err.Error(), password) {
		t.Errorf("password in %v", err)
	}
}

func TestNilAndOptions(t *testing.T) {
	_, redisErr := connector.NewRedis(nil)
	_, etcdErr := connector.NewEtcd(nil)
	if !errors.Is(redisErr, connector.ErrConfigNil) || !errors.Is(etcdErr, connector.ErrConfigNil) {
		t.Errorf("nil config: %v, %v", redisErr, etcdErr)
	}
	_, err := connector.NewRedis(&connector.RedisConfig{Addr: "a:1"}, nil)
	refusedConfig(t, "option 0", err)
	_, err = connector.NewRedis(&connector.RedisConfig{Addr: "a:1"}, connector.WithRedisLockOptions(nil))
	refusedConfig(t, "WithRedisLockOptions", err)
	_, err = connector.NewEtcd(&connector.EtcdConfig{Endpoints: []string{"a:1"}}, connector.WithRedisLockOptions(redislock.WithPlainClients(0)))
	refusedConfig(t, "WithRedisLockOptions", err)
}

func TestConstructorsDoNotDial(t *testing.T) {
	door := shutDoor(t)
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		newRedis(t, connector.RedisConfig{Addr: door.addr(), Password: password, MinIdleConns: 2})
		newRedis(t, connector.RedisConfig{Addrs: []string{door.addr()}, MasterName: "m", MinIdleConns: 2})
		newRedis(t, connector.RedisConfig{Addr: door.addr(), Cluster: true, MinIdleConns: 2})
		newEtcd(t, connector.EtcdConfig{Endpoints: []string{door.addr()}, Username: "root", Password: password})
		newEtcd(t, connector.EtcdConfig{Endpoints: []string{"10.255.255.1:2379"}, Username: "root", Password: password})
		time.Sleep(time.Minute) // of virtual time, for what is to begin later; a goroutine that dials stops that clock
		synctest.Wait()
	})
	if took := time.Since(began); took > overrun {
		t.Errorf("took %v", took)
	}
	door.knock(t)
	if n := door.knocks.Load(); n != 1 {
		t.Errorf("%d connections besides our own", n-1)
	}
}

// The compiler refuses a type that does not implement the interface.
func TestWrongConnector(t *testing.T) {
	if _, ok := any(&connector.Redis{}).(dlock.EtcdConnector); ok {
		t.Error("a Redis connector passes for etcd")
	}
	if _, ok := any(&connector.Etcd{}).(dlock.RedisConnector); ok {
		t.Error("an etcd connector passes for Redis")
	}
}

func TestPasswordsAreHidden(t *testing.T) {
	r := connector.RedisConfig{
		Addr: "redis://u:" + password + "@host:1", Addrs: []string{"redis://u:" + password + "@host:1"}, MasterName: "m",
		Password: password, SentinelPassword: password, TLS: &connector.TLSConfig{CAFile: "ca.pem"},
	}
	e := connector.EtcdConfig{Endpoints: []string{"http://u:" + password + "@host:1"}, Password: password, TLS: &connector.TLSConfig{CAFile: "ca.pem"}}
	for _, cfg := range []any{r, &r, e, &e, struct{ Inner any }{r}, []connector.EtcdConfig{e}, map[string]*connector.RedisConfig{"x": &r}} {
		for form, text := range forms(t, cfg) {
			if strings.Contains(text, password) {
				t.Errorf("%T as %s: %s", cfg, form, text)
			}
		}
	}
	for form, text := range forms(t, r) {
		if !strings.Contains(text, "[hidden]") || !strings.Contains(text, "ca.pem") || !strings.Contains(text, "host:1") {
			t.Errorf("as %s: %s", form, text)
		}
	}
	conn := newRedis(t, connector.RedisConfig{Addr: "a:1", Password: password})
	other := newEtcd(t, connector.EtcdConfig{Endpoints: []string{"http://a:1"}, Username: "u", Password: password})
	for _, c := range []any{conn, other} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			if text := fmt.Sprintf(verb, c); strings.Contains(text, password) || !strings.Contains(text, "a:1") {
				t.Errorf("%s: %s", verb, text)
			}
		}
	}
}

// forms returns a value in all formats in which people print it.
func forms(t *testing.T, v any) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		all[verb] = fmt.Sprintf(verb, v)
	}
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal} {
		text, err := marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	for name, handler := range map[string]func(w io.Writer) slog.Handler{
		"slog text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"slog json": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var b strings.Builder
		slog.New(handler(&b)).Info("config", "config", v)
		all[name] = b.String()
	}
	return all
}

func TestConfigLoads(t *testing.T) {
	want := connector.RedisConfig{
		Addrs: []string{"a:1", "b:1"}, MasterName: "m", Username: "u", Password: password, SentinelPassword: password,
		DB: 2, DialTimeout: 2 * time.Second, TLS: &connector.TLSConfig{CAFile: "ca.pem", InsecureSkipVerify: true},
	}
	var fromYAML, fromJSON, fromEnv connector.RedisConfig
	text := "addrs: [a:1, b:1]\nmaster_name: m\nusername: u\npassword: " + password + "\nsentinel_password: " + password +
		"\ndb: 2\ndial_timeout: 2s\ntls: {ca_file: ca.pem, insecure_skip_verify: true}\n"
	if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil || !reflect.DeepEqual(fromYAML, want) {
		t.Errorf("yaml: %v %v", fromYAML, err)
	}
	text = `{"addrs":["a:1","b:1"],"master_name":"m","username":"u","password":"` + password + `","sentinel_password":"` + password +
		`","db":2,"dial_timeout":"2s","tls":{"ca_file":"ca.pem","insecure_skip_verify":true}}`
	if err := json.Unmarshal([]byte(text), &fromJSON); err != nil || !reflect.DeepEqual(fromJSON, want) {
		t.Errorf("json: %v %v", fromJSON, err)
	}
	err := env.ParseWithOptions(&fromEnv, env.Options{Prefix: "REDIS_", Environment: map[string]string{
		"REDIS_ADDRS": "a:1,b:1", "REDIS_MASTER_NAME": "m", "REDIS_USERNAME": "u", "REDIS_PASSWORD": password,
		"REDIS_SENTINEL_PASSWORD": password, "REDIS_DB": "2", "REDIS_DIAL_TIMEOUT": "2s",
		"REDIS_TLS_CA_FILE": "ca.pem", "REDIS_TLS_INSECURE_SKIP_VERIFY": "true",
	}})
	if err != nil || !reflect.DeepEqual(fromEnv, want) {
		t.Errorf("env: %v %v", fromEnv, err)
	}
	var etcd connector.EtcdConfig
	err = env.ParseWithOptions(&etcd, env.Options{Prefix: "ETCD_", Environment: map[string]string{"ETCD_ENDPOINTS": "a:1,b:1"}})
	if err != nil || etcd.Validate() != nil || len(etcd.Endpoints) != 2 {
		t.Errorf("env: %v %v", etcd, err)
	}
}

// A field has one name, in four spellings.
func TestConfigTags(t *testing.T) {
	for _, cfg := range []any{connector.RedisConfig{}, connector.EtcdConfig{}, connector.TLSConfig{}} {
		for i := range reflect.TypeOf(cfg).NumField() {
			f := reflect.TypeOf(cfg).Field(i)
			name := f.Tag.Get("mapstructure")
			inEnv := f.Tag.Get("env")
			if prefix := f.Tag.Get("envPrefix"); prefix != "" {
				inEnv = strings.TrimSuffix(prefix, "_")
			}
			for _, tag := range []string{f.Tag.Get("json"), f.Tag.Get("yaml"), strings.ToLower(inEnv)} {
				if spelt, _, _ := strings.Cut(tag, ","); name == "" || spelt != name {
					t.Errorf("%T.%s: %s", cfg, f.Name, f.Tag)
				}
			}
		}
	}
}
