//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

const password = "correct-horse"

// A password is taken from everywhere but the arguments, and shown nowhere.
func TestPasswords(t *testing.T) {
	t.Parallel()
	r, err := servers.StartRedis(t.Context(), servers.RedisOptions{Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"run", "k", "--", "sh", "-c", `tr "\0" " " < /proc/$PPID/cmdline; ps -ef || true; env | grep ^DLOCK_`}
	for name, env := range map[string][]string{
		"in the URL":         {"DLOCK_BACKEND=redis://:" + password + "@" + r.Addr()},
		"in the environment": {"DLOCK_BACKEND=redis://" + r.Addr(), "DLOCK_PASSWORD=" + password},
		"in a file":          {"DLOCK_BACKEND=redis://" + r.Addr() + "?password_file=" + file},
	} {
		cmd := command("", run...)
		cmd.Env = append(cmd.Env, env...)
		out, errs, code := finish(t, cmd)
		if code != 0 || strings.Contains(out+errs, password) {
			t.Errorf("%s: exit %d, %s%s", name, code, out, errs)
		}
	}
	cmd := command("redis://"+r.Addr(), "run", "k", "--", "env")
	cmd.Env = append(cmd.Env, "DLOCK_PASSWORD="+password)
	if out, errs, code := finish(t, cmd); code != 0 || strings.Contains(out, password) || !strings.Contains(out, "DLOCK_TOKEN=") {
		t.Errorf("the command finds the password: exit %d, %s", code, errs)
	}
	for name, backend := range map[string]string{
		"wrong":    "redis://:wrong-" + password + "@" + r.Addr(),
		"none":     "redis://" + r.Addr(),
		"no user":  "redis://nobody:" + password + "@" + r.Addr(),
		"bad port": "redis://:" + password + "@127.0.0.1:99999",
	} {
		_, errs, code := dlock(t, backend, "run", "-v", "k", "--", "true")
		want, cure := 69, "DLOCK_PASSWORD"
		if name == "bad port" {
			want, cure = 64, "port"
		}
		if code != want || strings.Contains(errs, password) || !strings.Contains(errs, cure) {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
	}
	_, errs, code := dlock(t, "", "run", "--backend", "redis://:"+password+"@"+r.Addr(), "k", "--", "true")
	if code != 64 || strings.Contains(errs, password) || !strings.Contains(errs, "password_file") {
		t.Errorf("in the arguments: exit %d, %s", code, errs)
	}
}

// One command for all kinds of Redis.
func TestTopologies(t *testing.T) {
	t.Parallel()
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testenv.Sentinel(t)
		var hosts []string
		for _, node := range s.Sentinels() {
			hosts = append(hosts, node.Addr())
		}
		excludes(t, fmt.Sprintf("redis+sentinel://%s/%s", strings.Join(hosts, ","), servers.MasterName))
	})
	t.Run("redlock", func(t *testing.T) {
		t.Parallel()
		var hosts []string
		for range 3 {
			hosts = append(hosts, testenv.Redis(t).Addr())
		}
		excludes(t, "redlock://"+strings.Join(hosts, ","))
		if _, errs, code := dlock(t, "redlock://"+strings.Join(hosts[:2], ","), "run", "k", "--", "true"); code != 64 || !strings.Contains(errs, "odd number") {
			t.Errorf("two servers: exit %d, %s", code, errs)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		var hosts []string
		for _, node := range testenv.Cluster(t).Nodes() {
			hosts = append(hosts, node.Addr())
		}
		excludes(t, "redis+cluster://"+strings.Join(hosts, ","))
	})
}

func excludes(t *testing.T, backend string) {
	t.Helper()
	h := wrap(t, backend, "obedient", filepath.Join(t.TempDir(), "w"), "k")
	h.says(t, "ready")
	if out, errs, code := tries(t, backend, "k"); code != 75 || out != "" {
		t.Errorf("exit %d, %q, %s", code, out, errs)
	}
	if out, errs, code := tries(t, backend, "other"); code != 0 || out != "ran\n" {
		t.Errorf("another key: exit %d, %q, %s", code, out, errs)
	}
}

// tries is a run with --try, which is repeated if the machine stalled for so long that no server answered in time.
func tries(t *testing.T, backend, key string) (stdout, stderr string, code int) {
	t.Helper()
	for {
		began := time.Now()
		stdout, stderr, code = dlock(t, backend, "run", "--try", key, "--", "echo", "ran")
		if code != 69 || !testenv.Stalled(t, began, 400*time.Millisecond) { // a server of redlock has half a second
			return stdout, stderr, code
		}
	}
}

// The configuration of a service names the same keys as the service.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t)
	file := filepath.Join(t.TempDir(), "service.yaml")
	text := fmt.Sprintf("dlock:\n  backend: redis\n  prefix: \"shop:\"\nredis:\n  addr: %s\n", r.Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client := r.Client()
	defer client.Close()
	if err := client.Set(t.Context(), "shop:k", "somebody", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := dlock(t, "", "run", "--config", file, "--try", "k", "--", "true"); code != 75 {
		t.Errorf("exit %d, %s", code, errs)
	}
	if _, errs, code := dlock(t, "redis://"+r.Addr()+"?prefix=shop:", "run", "--try", "k", "--", "true"); code != 75 {
		t.Errorf("the same by URL: exit %d, %s", code, errs)
	}
	if _, errs, code := dlock(t, "", "run", "--config", file, "--try", "free", "--", "true"); code != 0 {
		t.Errorf("exit %d, %s", code, errs)
	}
	for name, text := range map[string]string{
		"memory":   "dlock:\n  backend: memory\n",
		"mistyped": "dlock:\n  bakend: redis\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := dlock(t, "", "run", "--config", file, "k", "--", "true"); code != 64 || errs == "" {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
	}
}

// A server that is not there is not waited for.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"redis://127.0.0.1:1", "etcd://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"} {
		began := time.Now()
		_, errs, code := dlock(t, backend, "run", "k", "--", "true")
		if code != 69 || !strings.Contains(errs, "cannot be reached") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit %d, %s", backend, code, errs)
		}
		if took := time.Since(began); took > testenv.UnderStress(time.Minute, 10*time.Second) { // it never is there
			t.Errorf("%s: after %v", backend, took)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for _, args := range [][]string{
		{"nonsense"},
		{"run"},
		{"run", "k"},
		{"run", "k", "--"},
		{"run", "--nonsense", "k", "true"},
		{"run", "--try", "--wait", "1s", "k", "true"},
		{"run", "--shared", "--permits", "2", "k", "true"},
		{"run", "--permits", "0", "k", "true"},
		{"run", "--permits", "-1", "k", "true"},
		{"run", "--wait", "-1s", "k", "true"},
		{"run", "--ttl", "14s", "--grace", "5s", "k", "true"},
		{"run", "--ttl", "0", "k", "true"},
		{"run", "--grace", "-1s", "k", "true"},
		{"run", "--min-hold", "2s", "--max-hold", "1s", "k", "true"},
		{"run", "--on-lost", "pray", "k", "true"},
		{"run", "", "true"},
		{"run", "a\nb", "true"},
		{"run", "--ttl", "48h", "k", "true"},
		{"run", "--backend", "mysql://h", "k", "true"},
		{"run", "--backend", "file:///x?y=1", "k", "true"},
		{"version", "extra"},
		{"completion", "bsah"},
		{"help", "nonsense"},
		{"help", "run", "nonsense"},
		{"run", "--grace", "4700000000", "k", "true"},
	} {
		if out, errs, code := dlock(t, backend, args...); code != 64 || out != "" || !strings.HasPrefix(errs, "dlock: ") {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
	}
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"run", "--help"}, {"help", "backends"}, {"help", "run"}, {"completion"}, {"version"}, {"version", "--json"}, {"completion", "bash"}} {
		if out, errs, code := dlock(t, backend, args...); code != 0 || out == "" || errs != "" {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
	}
}
