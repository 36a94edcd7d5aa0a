//go:build unix

package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
)

type diagnosis struct {
	Backend, Where, Level string
	Findings              []struct{ Level, Name, Detail, Fix string }
}

func diagnose(t *testing.T, backend string, args ...string) (d diagnosis, levels map[string]string, code int) {
	t.Helper()
	out, errs, code := dlock(t, backend, append([]string{"doctor", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	levels = map[string]string{}
	for _, f := range d.Findings {
		levels[f.Name] = f.Level
		if f.Detail == "" || (f.Level != "ok" && f.Fix == "") {
			t.Errorf("%+v", f)
		}
	}
	return d, levels, code
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		d, levels, code := diagnose(t, backend)
		if code != 0 || d.Backend != name || d.Where != where(backend) || levels["latency"] != "ok" || levels["permissions"] != "ok" {
			t.Errorf("exit %d, %+v", code, d)
		}
		own := map[string][]string{
			"file": {"file-system", "directory", "wake-up"}, "redis": {"version", "eviction-policy", "persistence", "replication", "clock"},
			"etcd": {"version", "members", "alarms", "cluster", "space"},
		}
		for _, f := range own[name] {
			if levels[f] == "" {
				t.Errorf("no %s in %+v", f, d)
			}
		}
		if out, _, _ := dlock(t, backend, "ls"); strings.Count(out, "\n") != 1 {
			t.Errorf("doctor has left a lock:\n%s", out)
		}
	})
}

func TestDoctorUnsafe(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t, "--maxmemory-policy", "volatile-lru", "--maxmemory", "50mb")
	d, levels, code := diagnose(t, "redis://"+r.Addr())
	if code != 1 || d.Level != "unsafe" || levels["eviction-policy"] != "unsafe" {
		t.Errorf("exit %d, %+v", code, d)
	}
	out, _, code := dlock(t, "redis://"+r.Addr(), "doctor")
	if code != 1 || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d, %q", code, out)
	}
	contains(t, out, "unsafe   eviction-policy", "set maxmemory-policy noeviction", "NOT safe")
	cmd := command("redis://"+r.Addr(), "doctor")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	s := onTerminal(t, cmd)
	if code := exitOf(cmd); code != 1 {
		t.Errorf("exit %d", code)
	}
	s.shows(t, "\x1b[31munsafe \x1b[0m")
}

// What a user may not do is found, and named.
func TestDoctorPermissions(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t)
	client := r.Client()
	defer client.Close()
	for user, rights := range map[string][]any{
		"reader": {"+@read", "+info", "+ping", "+evalsha", "+eval", "+time", "+@connection"},
		"clerk":  {"+@all", "-scan", "-keys", "-info"},
	} {
		rule := append([]any{"ACL", "SETUSER", user, "on", ">secret", "~*", "&*"}, rights...)
		if err := client.Do(t.Context(), rule...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d, levels, code := diagnose(t, "redis://reader:secret@"+r.Addr())
	if code != 1 || levels["permissions"] != "unsafe" || !strings.Contains(d.Findings[len(d.Findings)-1].Detail+d.Findings[len(d.Findings)-2].Detail, "cannot lock") {
		t.Errorf("reader: exit %d, %+v", code, d)
	}
	if strings.Contains(d.Where, "secret") {
		t.Errorf("the password is shown: %s", d.Where)
	}
	d, levels, code = diagnose(t, "redis://clerk:secret@"+r.Addr())
	if code != 0 || levels["permissions"] != "warning" || levels["settings"] != "warning" || levels["latency"] != "ok" {
		t.Errorf("clerk: exit %d, %+v", code, d)
	}
}

// A replica that has stopped is found by doctor, which does not blame the permissions. A command that is refused for it says
// so at once, and does not name itself as the holder.
func TestStoppedReplica(t *testing.T) {
	t.Parallel()
	master := testenv.Redis(t)
	replica := testenv.Redis(t, "--replicaof", "127.0.0.1", strings.TrimPrefix(master.Addr(), "127.0.0.1:"))
	client := master.Client()
	defer client.Close()
	testenv.Eventually(t, time.Minute, "the replica is connected", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "state=online")
	})
	backend := "redis://" + master.Addr() + "?min_replicas=1"
	if _, errs, code := dlock(t, backend, "run", "k", "--", "true"); code != 0 {
		t.Fatalf("exit %d, %s", code, errs)
	}
	if err := replica.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replica.Resume() }()
	_, errs, code := dlock(t, backend, "run", "--try", "k", "--", "true")
	if code != 69 || !strings.Contains(errs, "too few replicas have confirmed") || strings.Contains(errs, "waiting") || strings.Contains(errs, "held by") {
		t.Errorf("exit %d, %s", code, errs)
	}
	testenv.Eventually(t, time.Minute, "the master has missed the replica for a while", func() bool {
		return regexp.MustCompile(`lag=([4-9]|\d\d)`).MatchString(client.Info(t.Context(), "replication").Val())
	})
	d, levels, code := diagnose(t, backend)
	if code != 1 || levels["replication"] != "unsafe" || levels["ready"] != "unsafe" || levels["permissions"] != "" {
		t.Errorf("exit %d, %+v", code, d)
	}
	if out, _, _ := dlock(t, backend, "doctor"); !strings.Contains(out, " min_replicas needs 1") {
		t.Errorf("it does not name the parameter of the URL: %s", out)
	}
}

// A replica is called one, and where in a script it has refused is not said.
func TestRunOnAReplica(t *testing.T) {
	t.Parallel()
	replica := testenv.Redis(t, "--replicaof", "127.0.0.1", "1")
	_, errs, code := dlock(t, "redis://"+replica.Addr(), "run", "--try", "k", "--", "true")
	if code != 69 || !strings.Contains(errs, "this server is a replica, connect to the master") || strings.Contains(errs, "script:") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// A TTL is judged by how far away the backend is. A warning leaves little time for a release.
func TestDoctorLatency(t *testing.T) {
	t.Parallel()
	faulty, p := through(t, theRedis.backend(t))
	p.Delay(100*time.Millisecond, 100*time.Millisecond) // 400 ms for lock and release
	wants := map[string]string{"100s": "ok", "1s": "unsafe"}
	if stress() {
		wants["3500ms"] = "warning"
	}
	for ttl, want := range wants {
		t.Run(ttl, func(t *testing.T) {
			t.Parallel()
			if d, levels, _ := diagnose(t, faulty, "--ttl", ttl); levels["latency"] != want {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A key that is in use is nothing to try locks on.
func TestDoctorKeyInUse(t *testing.T) {
	t.Parallel()
	backend := files(t)
	_, token := holds(t, backend, "ann", "k")
	_, errs, code := dlock(t, backend, "doctor", "--key", "k")
	if code != 75 || !strings.Contains(errs, "ann@") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if s := seen(t, backend, "k"); s.Token != token {
		t.Errorf("%+v", s)
	}
}

// Nothing of the locks that doctor has tried stays behind.
func TestDoctorLeavesNothing(t *testing.T) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		backend := files(t)
		if _, errs, code := dlock(t, backend, "doctor"); code != 0 {
			t.Fatalf("exit %d, %s", code, errs)
		}
		left, err := filepath.Glob(filepath.Join(strings.TrimPrefix(backend, "file://"), "*.lock"))
		if len(left) > 0 || err != nil {
			t.Errorf("%q, %v", left, err)
		}
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := testenv.Redis(t)
		if _, errs, code := dlock(t, "redis://"+r.Addr()+"?prefix=app:", "doctor"); code != 0 {
			t.Fatalf("exit %d, %s", code, errs)
		}
		if left := leftIn(t, r.Client()); len(left) > 0 {
			t.Errorf("%q", left)
		}
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		e := testenv.Etcd(t)
		if _, errs, code := dlock(t, "etcd://"+e.Addr()+"?prefix=app:", "doctor"); code != 0 {
			t.Fatalf("exit %d, %s", code, errs)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if left, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly()); err != nil || len(left.Kvs) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	})
}
