package dlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dlocktest"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

type connector struct{ driver.Opener }

func (c *connector) RedisLocks() driver.Opener { return c.Opener }
func (c *connector) EtcdLocks() driver.Opener  { return c.Opener }

// named is the memory backend under another name.
func named(name string) driver.Opener {
	return &scripted{Opener: memlock.New(), caps: func(c *driver.Caps) { c.Name = name }}
}

func TestBadConfig(t *testing.T) {
	memory := dlock.WithBackend(memlock.New())
	var typedNil *connector
	for name, tc := range map[string]struct {
		make  func() (*dlock.Client, error)
		want  error
		names string
	}{
		"nil config":              {func() (*dlock.Client, error) { return dlock.New(nil, memory) }, dlock.ErrConfigNil, ""},
		"nil config for Redis":    {func() (*dlock.Client, error) { return dlock.NewRedis(&connector{memlock.New()}, nil) }, dlock.ErrConfigNil, ""},
		"no backend":              {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{}) }, dlock.ErrConnectorNil, ""},
		"nil backend":             {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{}, dlock.WithBackend(nil)) }, dlock.ErrConnectorNil, ""},
		"nil Redis connector":     {func() (*dlock.Client, error) { return dlock.NewRedis(nil, &dlock.Config{}) }, dlock.ErrConnectorNil, "redis"},
		"typed nil connector":     {func() (*dlock.Client, error) { return dlock.NewEtcd(typedNil, &dlock.Config{}) }, dlock.ErrConnectorNil, "etcd"},
		"connector without locks": {func() (*dlock.Client, error) { return dlock.NewRedis(&connector{}, &dlock.Config{}) }, dlock.ErrConnectorNil, "redis"},
		"Redis config for etcd": {func() (*dlock.Client, error) {
			return dlock.NewEtcd(&connector{named("etcd")}, &dlock.Config{Backend: "redis"})
		}, dlock.ErrInvalidConfig, "redis"},
		"backend of another name": {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{Backend: "file"}, memory) }, dlock.ErrInvalidConfig, "memory"},
		"two backends":            {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{}, memory, memory) }, dlock.ErrInvalidConfig, "several"},
		"unknown backend":         {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{Backend: "zoo"}, memory) }, dlock.ErrInvalidConfig, `"zoo"`},
		"nil option":              {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{}, memory, nil) }, dlock.ErrInvalidConfig, "option 1"},
		"negative TTL":            {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{DefaultTTL: -1}, memory) }, dlock.ErrInvalidTTL, "DefaultTTL"},
		"TTL over a day":          {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{DefaultTTL: 25 * time.Hour}, memory) }, dlock.ErrInvalidTTL, "DefaultTTL"},
		"negative retries":        {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{MaxRetries: -1}, memory) }, dlock.ErrInvalidConfig, "MaxRetries"},
		"negative retry interval": {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{RetryInterval: -1}, memory) }, dlock.ErrInvalidConfig, "RetryInterval"},
		"retry interval of 1ns":   {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{RetryInterval: 1}, memory) }, dlock.ErrInvalidConfig, "RetryInterval"},
		"renewal too rare":        {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{RenewInterval: 5 * second}, memory) }, dlock.ErrInvalidConfig, "RenewInterval"},
		"renewal every 500ns":     {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{RenewInterval: 500}, memory) }, dlock.ErrInvalidConfig, "RenewInterval"},
		"prefix with newline":     {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{Prefix: "a\nb"}, memory) }, dlock.ErrInvalidConfig, "Prefix"},
		"TTL below the backend's": {func() (*dlock.Client, error) {
			return dlock.New(&dlock.Config{DefaultTTL: second}, dlock.WithBackend(&scripted{Opener: memlock.New(), caps: func(c *driver.Caps) { c.MinTTL = 2 * second }}))
		}, dlock.ErrInvalidTTL, "2s"},
		"unfair backend": {func() (*dlock.Client, error) {
			return dlock.New(&dlock.Config{RequireFair: true}, dlock.WithBackend(&scripted{Opener: memlock.New(), caps: func(c *driver.Caps) { c.FIFO = false }}))
		}, dlock.ErrUnsupported, "RequireFair"},
		"backend that does not open": {func() (*dlock.Client, error) { return dlock.New(&dlock.Config{}, dlock.WithBackend(failing{})) }, errNet, ""},
		"backend that does not fit or close": {func() (*dlock.Client, error) {
			return dlock.New(&dlock.Config{Backend: "redis"}, dlock.WithBackend(&closeFails{memlock.New()}))
		}, errNet, "memory"},
	} {
		c, err := tc.make()
		if c != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%s: %v, %v; want %v naming %q", name, c, err, tc.want, tc.names)
		}
	}
}

type failing struct{}

func (failing) Open(driver.Options) (driver.Driver, error) { return nil, errNet }

func TestGoodConfig(t *testing.T) {
	for name, c := range map[string]func() (*dlock.Client, error){
		"redis": func() (*dlock.Client, error) { return dlock.NewRedis(&connector{named("redis")}, &dlock.Config{}) },
		"etcd": func() (*dlock.Client, error) {
			return dlock.NewEtcd(&connector{named("etcd")}, &dlock.Config{Backend: "etcd"})
		},
		"chosen": func() (*dlock.Client, error) {
			return dlock.New(&dlock.Config{Backend: "etcd"}, dlock.WithRedisConnector(&connector{named("redis")}), dlock.WithEtcdConnector(&connector{named("etcd")}))
		},
	} {
		client, err := c()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		unlock(t, acquire(t, client, "k"))
		if err := client.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cfg := range map[string]dlock.Config{
		"shortest spans":  {DefaultTTL: 10 * time.Millisecond, RetryInterval: time.Millisecond, RenewInterval: time.Millisecond},
		"longest spans":   {DefaultTTL: 24 * time.Hour, RetryInterval: time.Minute, RenewInterval: 8 * time.Hour},
		"most goroutines": {LocalBatch: 1 << 16},
	} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var cfg dlock.Config
	if err := json.Unmarshal([]byte(`{"backend":"memory","prefix":"p:","default_ttl":"1s","enable_reentrant":true}`), &cfg); err != nil || cfg.Validate() != nil || cfg.Prefix != "p:" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestBadCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		long := strings.Repeat("x", 300)
		do := func(ctx context.Context, key string, opts ...dlock.LockOption) map[string]error {
			_, tryErr := c.TryLock(ctx, key, opts...)
			_, acqErr := c.Acquire(ctx, key, opts...)
			_, tryAcqErr := c.TryAcquire(ctx, key, opts...)
			return map[string]error{
				"Lock": c.Lock(ctx, key, opts...), "TryLock": tryErr, "Acquire": acqErr, "TryAcquire": tryAcqErr,
				"Do": c.Do(ctx, key, func(context.Context) error { return nil }, opts...),
			}
		}
		for name, tc := range map[string]struct {
			errs  map[string]error
			want  error
			names string
		}{
			"nil context":         {do(nil, "k"), dlock.ErrInvalidConfig, "context"},
			"empty key":           {do(ctx, ""), dlock.ErrInvalidKey, "empty"},
			"key over 1 KiB":      {do(ctx, strings.Repeat("k", 1025)), dlock.ErrInvalidKey, "1025"},
			"invalid UTF-8":       {do(ctx, "a\xffb"), dlock.ErrInvalidKey, "byte 1"},
			"newline":             {do(ctx, "a\nb"), dlock.ErrInvalidKey, "U+000A"},
			"NUL":                 {do(ctx, "\x00"), dlock.ErrInvalidKey, "U+0000"},
			"zero width space":    {do(ctx, "a\u200b"), dlock.ErrInvalidKey, "U+200B"},
			"right to left":       {do(ctx, "\u202e"), dlock.ErrInvalidKey, "U+202E"},
			"byte order mark":     {do(ctx, "\ufeffk"), dlock.ErrInvalidKey, "U+FEFF"},
			"line separator":      {do(ctx, "a\u2028b"), dlock.ErrInvalidKey, "U+2028"},
			"private use":         {do(ctx, "\ue000"), dlock.ErrInvalidKey, "U+E000"},
			"no character":        {do(ctx, "\uffff"), dlock.ErrInvalidKey, "U+FFFF"},
			"no-break space":      {do(ctx, "a\u00a0b"), dlock.ErrInvalidKey, "U+00A0"},
			"nil option":          {do(ctx, "k", nil), dlock.ErrInvalidConfig, "option 0"},
			"zero TTL":            {do(ctx, "k", dlock.WithTTL(0)), dlock.ErrInvalidTTL, "0s"},
			"negative TTL":        {do(ctx, "k", dlock.WithTTL(-second)), dlock.ErrInvalidTTL, "-1s"},
			"TTL of 1ns":          {do(ctx, "k", dlock.WithTTL(1)), dlock.ErrInvalidTTL, "10ms"},
			"TTL over a day":      {do(ctx, "k", dlock.WithTTL(24*time.Hour+1)), dlock.ErrInvalidTTL, "24h"},
			"greatest TTL":        {do(ctx, "k", dlock.WithTTL(math.MaxInt64)), dlock.ErrInvalidTTL, "24h"},
			"negative min hold":   {do(ctx, "k", dlock.WithMinHold(-1)), dlock.ErrInvalidConfig, "WithMinHold"},
			"absurd max hold":     {do(ctx, "k", dlock.WithMaxHold(math.MaxInt64)), dlock.ErrInvalidConfig, "WithMaxHold"},
			"min above max hold":  {do(ctx, "k", dlock.WithMinHold(2*second), dlock.WithMaxHold(second)), dlock.ErrInvalidConfig, "WithMaxHold"},
			"margin over the TTL": {do(ctx, "k", dlock.WithTTL(second), dlock.WithMargin(second)), dlock.ErrInvalidConfig, "WithMargin"},
			"negative margin":     {do(ctx, "k", dlock.WithMargin(-1)), dlock.ErrInvalidConfig, "WithMargin"},
			"no permits":          {do(ctx, "k", dlock.WithPermits(0)), dlock.ErrInvalidConfig, "WithPermits 0"},
			"too many permits":    {do(ctx, "k", dlock.WithPermits(1<<20+1)), dlock.ErrInvalidConfig, "WithPermits"},
			"long owner":          {do(ctx, "k", dlock.WithInfo(dlock.Info{Owner: long})), dlock.ErrInvalidConfig, "Info.Owner"},
			"control in purpose":  {do(ctx, "k", dlock.WithInfo(dlock.Info{Purpose: "\x1b[2J"})), dlock.ErrInvalidConfig, "Info.Purpose"},
		} {
			for op, err := range tc.errs {
				var e *dlock.Error
				if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.names) || !errors.As(err, &e) {
					t.Errorf("%s, %s: %v", name, op, err)
				}
			}
		}
		wantErr(t, c.Lock(ctx, "k", dlock.WithWait(-1)), dlock.ErrInvalidConfig)
		wantErr(t, c.Do(ctx, "k", nil), dlock.ErrInvalidConfig)
		wantErr(t, c.Unlock(nil, "k"), dlock.ErrInvalidConfig) //nolint:staticcheck // the point of the test
		_, err := c.Check(nil)                                 //nolint:staticcheck // the point of the test
		wantErr(t, err, dlock.ErrInvalidConfig)
		if n := faults.Calls(faultdriver.Acquire) + faults.Calls(faultdriver.Release); n > 0 {
			t.Errorf("%d calls were sent", n)
		}
	})
}

func TestBadGuards(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k")
		copied := reflect.New(reflect.TypeFor[dlock.Guard]()) // go vet would find a plain copy
		copied.Elem().Set(reflect.ValueOf(g).Elem())
		for name, bad := range map[string]*dlock.Guard{"zero": {}, "nil": nil, "copied": copied.Interface().(*dlock.Guard)} {
			wantErr(t, bad.Unlock(ctx), dlock.ErrLockNotHeld)
			wantErr(t, bad.Extend(ctx, second), dlock.ErrLockNotHeld)
			wantErr(t, bad.Context().Err(), context.Canceled)
			wantErr(t, context.Cause(bad.Context()), dlock.ErrLockNotHeld)
			child, cancel := bad.WithContext(ctx)
			wantErr(t, child.Err(), context.Canceled)
			cancel()
			if bad.Key() != "" || bad.Token() != 0 || bad.Remaining() != 0 {
				t.Errorf("%s: %q %d %v", name, bad.Key(), bad.Token(), bad.Remaining())
			}
			<-bad.Done()
		}
		alive(t, g)
		wantErr(t, g.Unlock(nil), dlock.ErrInvalidConfig)         //nolint:staticcheck // the point of the test
		wantErr(t, g.Extend(nil, second), dlock.ErrInvalidConfig) //nolint:staticcheck // the point of the test
		alive(t, g)
		unlock(t, g)
		wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		if dlock.OwnerContext(nil) == nil { //nolint:staticcheck // must not panic
			t.Error("no context")
		}
	})
}

// A second unlock never touches a later holder.
func TestDoubleUnlockReleasesNoOtherLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		for range times(500, 10_000) {
			g := acquire(t, c, "k")
			unlock(t, g)
			h := acquire(t, c, "k")
			wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
			alive(t, h)
			unlock(t, h)
		}
	})
}

type panicking struct{ slog.Handler }

func (panicking) Enabled(context.Context, slog.Level) bool  { return true }
func (panicking) Handle(context.Context, slog.Record) error { panic("logger") }
func (p panicking) WithAttrs([]slog.Attr) slog.Handler      { return p }
func (p panicking) WithGroup(string) slog.Handler           { return p }

// A logger that panics does not affect the locks.
func TestPanickingLogger(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail, Times: 1})
		c := client(t, faults, dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(panicking{}))))
		g := acquire(t, c, "k")
		elapse(time.Minute)
		alive(t, g)
		unlock(t, g)
		lock(t, c, ctx, "k")
		dlocktest.Lose(t, c, "k")
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Log records contain the key and the token, and never a claim ID.
func TestLog(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var out strings.Builder
		logger := clog.FromSlog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))).WithNamespace("app")
		store := memlock.New()
		faults := faultdriver.New(store, 1).Remote()
		c := client(t, faults, dlock.Config{MaxRetries: 1}, dlock.WithLogger(logger))
		g := acquire(t, c, "order:123")
		unlock(t, g)
		lock(t, c, ctx, "order:124")
		d, err := store.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		claims, err := d.(driver.Admin).Inspect(ctx, "order:124")
		if err != nil {
			t.Fatal(err)
		}
		dlocktest.Lose(t, c, "order:124")
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail, Times: 1})
		acquire(t, c, "order:125")
		elapse(10 * second)
		faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest})
		_ = c.Do(ctx, "order:126", func(context.Context) error { return nil })
		elapse(2 * time.Minute)
		_ = c.Close()
		text := out.String()
		for _, want := range []string{
			`level=INFO msg="lock acquired" namespace=app.dlock component=dlock key=order:123 owner=` + filepath.Base(os.Args[0]) + ` token=1`, "lock released",
			`level=ERROR msg="ownership lost"`, `msg="lock evicted"`, "watchdog renew failed", "release not confirmed", "cleanup gave up",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in the log:\n%s", want, text)
			}
		}
		if strings.Contains(text, claims[0].ID) {
			t.Error("a claim ID is in the log")
		}
	})
}

func TestErrorsHaveCodes(t *testing.T) {
	codes := map[string]bool{}
	for _, err := range []error{
		dlock.ErrConfigNil, dlock.ErrConnectorNil, dlock.ErrInvalidConfig, dlock.ErrInvalidKey, dlock.ErrInvalidTTL, dlock.ErrLockNotHeld,
		dlock.ErrLockAlreadyHeld, dlock.ErrLockHeldByOther, dlock.ErrOwnershipLost, dlock.ErrUnknownOutcome, dlock.ErrUnsupported, dlock.ErrClosed,
	} {
		code := xerrors.CodeOf(&dlock.Error{Op: "op", Err: fmt.Errorf("wrapped: %w", err)})
		if code == "" || codes[code] {
			t.Errorf("%v has the code %q", err, code)
		}
		codes[code] = true
	}
}

func TestAdminAndCheck(t *testing.T) {
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Admin()
	wantErr(t, err, dlock.ErrUnsupported)
	findings, err := c.Check(ctx)
	if err != nil || len(findings) != 1 || findings[0].Level != dlock.LevelWarning {
		t.Errorf("Check = %v, %v", findings, err)
	}
	plain := client(t, &closeFails{memlock.New()}, dlock.Config{}) // neither Admin nor Checker
	_, err = plain.Admin()
	wantErr(t, err, dlock.ErrUnsupported)
	_, err = plain.Check(ctx)
	wantErr(t, err, dlock.ErrUnsupported)
	acquire(t, plain, "k")
	_, err = plain.TryAcquire(ctx, "k")
	wantErr(t, err, dlock.ErrLockHeldByOther)

	a, err := client(t, memlock.New(), dlock.Config{}).Admin()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = a.ListPage(ctx, "", "", 0)
	wantErr(t, err, dlock.ErrInvalidConfig)
	_, _, err = a.ListPage(nil, "", "", 1) //nolint:staticcheck // the point of the test
	wantErr(t, err, dlock.ErrInvalidConfig)
	_, err = a.Inspect(ctx, "")
	wantErr(t, err, dlock.ErrInvalidKey)
	wantErr(t, a.Evict(ctx, "", 1), dlock.ErrInvalidKey)
	wantErr(t, a.Evict(ctx, "free", 1), dlock.ErrLockNotHeld)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "a", "a/b", "\x00", "\xff", "\u0085", "日本", "\ufffd", "a b", "a\u200b", "\u00a0", "\u202e", "\ue000", strings.Repeat("k", 1024), strings.Repeat("k", 1025)} {
		f.Add(seed)
	}
	c := dlocktest.New(f)
	f.Fuzz(func(t *testing.T, key string) {
		valid := key != "" && len(key) <= 1024 && utf8.ValidString(key) && !strings.ContainsFunc(key, unprintable)
		g, err := c.TryAcquire(ctx, key)
		if valid != (err == nil) || (!valid && !errors.Is(err, dlock.ErrInvalidKey)) {
			t.Fatalf("%q: %v", key, err)
		}
		if err == nil {
			unlock(t, g)
		}
	})
}

// A TTL is refused, or it is used as the lease.
func FuzzTTL(f *testing.F) {
	for _, seed := range []int64{0, -1, 1, 999_999, 1e6, 1e7 - 1, 1e7, 999e6, int64(24 * time.Hour), int64(24*time.Hour) + 1, math.MaxInt64, math.MinInt64} {
		f.Add(seed)
	}
	c, tries := dlocktest.New(f), atomic.Int64{}
	f.Fuzz(func(t *testing.T, n int64) {
		ttl := time.Duration(n)
		g, err := c.TryAcquire(ctx, fmt.Sprint("k", tries.Add(1)), dlock.WithTTL(ttl))
		if ttl < 10*time.Millisecond || ttl > 24*time.Hour {
			wantErr(t, err, dlock.ErrInvalidTTL)
			return
		}
		if ttl < second && errors.Is(err, dlock.ErrUnknownOutcome) {
			return // on a busy machine the call may take longer than the lease
		}
		if err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left <= 0 && ttl > second || left > ttl {
			t.Errorf("%v left of %v", left, ttl)
		}
		_ = g.Unlock(ctx) // on a busy machine a lease of a few milliseconds may have ended
	})
}

// renamed is a third-party backend.
type renamed struct{ driver.Opener }

type renamedDriver struct{ driver.Driver }

func (r renamed) Open(o driver.Options) (driver.Driver, error) {
	d, err := r.Opener.Open(o)
	return renamedDriver{d}, err
}

func (d renamedDriver) Caps() driver.Caps {
	caps := d.Driver.Caps()
	caps.Name = "consul"
	return caps
}

func TestBackendOfAnotherAuthor(t *testing.T) {
	c, err := dlock.New(&dlock.Config{Backend: "consul"}, dlock.WithBackend(renamed{memlock.New()}))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []dlock.BackendType{dlock.BackendMemory, "Consul"} {
		if _, err := dlock.New(&dlock.Config{Backend: wrong}, dlock.WithBackend(renamed{memlock.New()})); !errors.Is(err, dlock.ErrInvalidConfig) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if _, err := dlock.New(&dlock.Config{Backend: "consul"}); !errors.Is(err, dlock.ErrConnectorNil) {
		t.Errorf("without a backend: %v", err)
	}
}

func TestWithSlog(t *testing.T) {
	var out bytes.Buffer
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithSlog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "order:1", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "order:1") {
		t.Errorf("logged %q", out.String())
	}
}
