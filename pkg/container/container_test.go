package container_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file writes a configuration.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const whole = `
log:
  level: warn
  format: json
redis:
  addr: localhost:6379
  password: hunter2
  dial_timeout: 750ms
dlock:
  backend: redis
  prefix: "app:"
  default_ttl: 15s
  max_retries: 3
  enable_reentrant: true
`

func TestLoad(t *testing.T) {
	const json = "{\n\t\"redis\": {\"addr\": \"localhost:6379\", \"password\": \"hunter2\", \"dial_timeout\": \"750ms\"},\n\t\"log\": {\"level\": \"warn\", \"format\": \"json\"},\n\t" +
		"\"dlock\": {\"backend\": \"redis\", \"prefix\": \"app:\", \"default_ttl\": \"15s\", \"max_retries\": 3, \"enable_reentrant\": true}\n}"
	for _, path := range []string{file(t, "a.yaml", whole), file(t, "a.yml", whole), file(t, "a.json", json)} {
		cfg, err := container.Load(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		want := dlock.Config{Backend: "redis", Prefix: "app:", DefaultTTL: 15 * time.Second, MaxRetries: 3, EnableReentrant: true}
		if cfg.DLock == nil || *cfg.DLock != want {
			t.Errorf("%s: dlock is %+v", path, cfg.DLock)
		}
		if r := cfg.Redis; r == nil || r.Addr != "localhost:6379" || r.Password != "hunter2" || r.DialTimeout != 750*time.Millisecond {
			t.Errorf("%s: redis is %v", path, r)
		}
		if tls := cfg.Redis.TLS; tls != nil && *tls != (connector.TLSConfig{}) {
			t.Errorf("%s: tls is %v", path, tls)
		}
		if cfg.Log.Level != "warn" || cfg.Log.Format != "json" || cfg.Etcd != nil {
			t.Errorf("%s: %+v", path, cfg)
		}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The environment takes precedence over the file, and can create sections.
func TestLoadEnvironment(t *testing.T) {
	t.Setenv("GENESIS_DLOCK_BACKEND", "etcd")
	t.Setenv("GENESIS_DLOCK_DEFAULT_TTL", "20s")
	t.Setenv("GENESIS_ETCD_ENDPOINTS", "a:2379,b:2379")
	t.Setenv("GENESIS_REDIS_DB", "3")
	t.Setenv("GENESIS_REDIS_TLS_CA_FILE", "ca.pem")
	t.Setenv("GENESIS_LOG_LEVEL", "debug")
	cfg, err := container.Load(file(t, "a.yaml", whole))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DLock.Backend != "etcd" || cfg.DLock.DefaultTTL != 20*time.Second || cfg.DLock.Prefix != "app:" {
		t.Errorf("dlock is %+v", cfg.DLock)
	}
	if cfg.Etcd == nil || strings.Join(cfg.Etcd.Endpoints, " ") != "a:2379 b:2379" {
		t.Errorf("etcd is %v", cfg.Etcd)
	}
	if r := cfg.Redis; r.Addr != "localhost:6379" || r.DB != 3 || r.TLS == nil || r.TLS.CAFile != "ca.pem" {
		t.Errorf("redis is %v", r)
	}
	if cfg.Log.Level != "debug" || cfg.Log.Format != "json" {
		t.Errorf("log is %+v", cfg.Log)
	}
	if cfg, err := container.Load(""); err != nil || cfg.DLock.Backend != "etcd" {
		t.Errorf("without a file: %+v, %v", cfg, err)
	}
}

// A mistake is refused; the error names the line and shows no values.
func TestLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"unknown key":     {"a.yaml", "dlock:\n  backend: memory\n  prefx: x\n", "line 3: field prefx is not known"},
		"unknown in JSON": {"a.json", "{\n\t\"dlock\": {\n\t\t\"backnd\": \"redis\"\n\t}\n}", "line 3: field backnd is not known"},
		"unknown section": {"a.yaml", "cache: {}\n", "line 1: field cache is not known"},
		"wrong type":      {"a.yaml", "redis:\n  db: hunter2\n", "line 2: cannot unmarshal !!str a value into int"},
		"bad duration":    {"a.yaml", "dlock:\n  default_ttl: soon\n", "line 2"},
		"no YAML":         {"a.yaml", "a: [", "did not find expected"},
		"two documents":   {"a.yaml", "dlock: {}\n---\ndlock: {}\n", "more than one document"},
		"other ending":    {"a.toml", "", ".yaml, .yml or .json"},
	} {
		path := file(t, tc.file, tc.text)
		_, err := container.Load(path)
		if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: shows a value, or is of several lines: %v", name, err)
		}
	}
	if _, err := container.Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, container.ErrInvalidConfig) {
		t.Errorf("no file: %v", err)
	}
	for _, name := range []string{"GENESIS_DLOCK_BAKEND", "GENESIS_LOG_OUTPUT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "redis")
			if _, err := container.Load(""); !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), name+" is not known") {
				t.Errorf("unknown variable: %v", err)
			}
		})
	}
}

func TestBadVariable(t *testing.T) {
	t.Setenv("GENESIS_DLOCK_MAX_RETRIES", "hunter2")
	if _, err := container.Load(""); !errors.Is(err, container.ErrInvalidConfig) || !strings.HasSuffix(err.Error(), "GENESIS_DLOCK_MAX_RETRIES is not a int") {
		t.Errorf("a bad number: %v", err)
	}
}

func TestValidate(t *testing.T) {
	var none *container.Config
	if err := none.Validate(); !errors.Is(err, container.ErrConfigNil) {
		t.Error(err)
	}
	for want, cfg := range map[string]*container.Config{
		"dlock.backend is not set":      {},
		"may be any of redis, file":     {Redis: &connector.RedisConfig{}, File: &container.FileConfig{}},
		"the section redis is missing":  {DLock: &dlock.Config{Backend: "redis"}},
		"the section etcd is missing":   {DLock: &dlock.Config{Backend: "etcd"}},
		"the section file is missing":   {DLock: &dlock.Config{Backend: "file"}},
		"none of redis":                 {DLock: &dlock.Config{Backend: "zookeeper"}},
		"redis: ":                       {DLock: &dlock.Config{Backend: "redis"}, Redis: &connector.RedisConfig{}},
		"etcd: ":                        {DLock: &dlock.Config{Backend: "etcd"}, Etcd: &connector.EtcdConfig{}},
		"log: ":                         {DLock: &dlock.Config{Backend: "memory"}, Log: clog.Config{Level: "loud"}},
		"dlock: invalid configuration:": {DLock: &dlock.Config{Backend: "memory", MaxRetries: -1}},
	} {
		_, err := container.New(cfg)
		if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := container.New(&container.Config{DLock: &dlock.Config{Backend: "memory"}}, nil); !errors.Is(err, container.ErrInvalidConfig) {
		t.Errorf("a nil option: %v", err)
	}
}

// Without a backend name, the backend is the one whose section is set.
func TestBackendOfTheOnlySection(t *testing.T) {
	for _, locks := range []*dlock.Config{nil, {Prefix: "app:"}} {
		cfg := &container.Config{File: &container.FileConfig{Dir: t.TempDir()}, DLock: locks}
		named, err := cfg.LockConfig()
		if err != nil || named.Backend != dlock.BackendFile || (locks != nil && (named.Prefix != "app:" || locks.Backend != "")) {
			t.Errorf("%+v: %+v, %v", locks, named, err)
		}
		c, err := container.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.DLock.Do(t.Context(), "k", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// One value decides where the locks are stored, and nothing else changes.
func TestBackends(t *testing.T) {
	redis, etcd := testenv.Redis(t), testenv.Etcd(t)
	ctx := context.Background()
	for _, backend := range []dlock.BackendType{dlock.BackendMemory, dlock.BackendRedis, dlock.BackendEtcd} {
		cfg := &container.Config{
			Redis: &connector.RedisConfig{Addr: redis.Addr()}, Etcd: &connector.EtcdConfig{Endpoints: []string{etcd.Endpoint()}},
			DLock: &dlock.Config{Backend: backend},
		}
		reader := sdkmetric.NewManualReader()
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		c, err := container.New(cfg, container.WithLogger(clog.Logger{}), container.WithMeter(meters.Meter("test")), container.WithDLockOptions(dlock.WithAdmin()))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Connect(ctx); err != nil {
			t.Errorf("%s: %v", backend, err)
		}
		if err := c.DLock.Do(ctx, "k", func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: %v", backend, err)
		}
		if (c.Redis != nil) != (backend == "redis") || (c.Etcd != nil) != (backend == "etcd") {
			t.Errorf("%s has the connectors %v and %v", backend, c.Redis, c.Etcd)
		}
		if _, err := c.DLock.Admin(); err != nil {
			t.Errorf("%s: the option was not passed on: %v", backend, err)
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(ctx, &all); err != nil || len(all.ScopeMetrics) != 1 {
			t.Errorf("%s: nothing was measured: %v", backend, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: %v", backend, err)
		}
		if err := c.DLock.Lock(ctx, "k"); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("%s: after Close: %v", backend, err)
		}
		if err := errors.Join(c.Close(), meters.Shutdown(ctx)); err != nil {
			t.Errorf("%s: %v", backend, err)
		}
	}
}

// A failed build leaves nothing open; goleak would detect the client of etcd.
func TestFailedBuild(t *testing.T) {
	cfg := &container.Config{Etcd: &connector.EtcdConfig{Endpoints: []string{"localhost:1"}}, DLock: &dlock.Config{Backend: "etcd", DefaultTTL: 20 * time.Millisecond}}
	if _, err := container.New(cfg); !errors.Is(err, dlock.ErrInvalidTTL) {
		t.Errorf("a TTL that etcd cannot keep: %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	cfg := &container.Config{Redis: &connector.RedisConfig{Addr: "localhost:1"}, DLock: &dlock.Config{Backend: "redis"}}
	c, err := container.New(cfg, container.WithMeter(noop.Meter{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Connect(context.Background()); !errors.Is(err, connector.ErrUnreachable) || !strings.Contains(err.Error(), "container: redis:") {
		t.Error(err)
	}
}

// A nil meter or tracer is refused, like a nil option: the fields of a Container are never nil.
func TestNilMeterAndTracer(t *testing.T) {
	t.Parallel()
	cfg := &container.Config{DLock: &dlock.Config{Backend: "memory"}}
	for name, opt := range map[string]container.Option{"meter": container.WithMeter(nil), "tracer": container.WithTracer(nil)} {
		app, err := container.New(cfg, opt)
		if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if app != nil {
			_ = app.Close()
		}
	}
}
