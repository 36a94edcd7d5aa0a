package servers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/loopback"
)

func newEtcd(t *testing.T) *Etcd {
	t.Helper()
	e, err := StartEtcd(t.Context(), EtcdOptions{})
	skipMissing(t, err)
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestEtcdWaitsForItsPorts(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"for clients", "for peers"} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd(t)
			if err := e.Kill(); err != nil {
				t.Fatal(err)
			}
			squatter := occupy(t, e.ports[i].Addr())
			restarted := make(chan error, 1)
			go func() { restarted <- e.Restart(t.Context(), true) }()
			err := await(aMinute(t), "a failed start", func(context.Context) error {
				if !strings.Contains(e.Log(), "address already in use") {
					return errors.New(e.Log())
				}
				return nil
			})
			squatter.Close()
			if err := errors.Join(err, ended(t, restarted)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEtcdKnowsAnother(t *testing.T) {
	t.Parallel()
	ours, other := newEtcd(t), newEtcd(t)
	mistaken := &Etcd{server{name: "etcd", proc: ours.proc, ports: other.ports}, true}
	if err := mistaken.identify(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("another server on our port: %v", err)
	}
	if err := ours.identify(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEtcdLeaderIsAgreedUpon(t *testing.T) {
	t.Parallel()
	type said struct {
		lead string
		term uint64
	}
	for name, c := range map[string]struct {
		says map[string]said // by member; others of three are silent
		want string
	}{
		"all agree":                   {map[string]said{"a": {"b", 2}, "b": {"b", 2}, "c": {"b", 2}}, "b"},
		"one is silent":               {map[string]said{"a": {"b", 2}, "b": {"b", 2}}, "b"},
		"the leader is silent":        {map[string]said{"a": {"b", 2}, "c": {"b", 2}}, ""},
		"two are silent":              {map[string]said{"b": {"b", 2}}, ""},
		"one believes in the old":     {map[string]said{"a": {"a", 2}, "b": {"b", 3}, "c": {"b", 3}}, "b"},
		"a follower is a term behind": {map[string]said{"b": {"b", 3}, "c": {"b", 2}}, ""},
		"during an election":          {map[string]said{"a": {"0", 3}, "b": {"0", 3}, "c": {"0", 2}}, ""},
		"the old one in its old term": {map[string]said{"a": {"a", 2}, "c": {"b", 3}}, ""},
		"the leader has stepped down": {map[string]said{"a": {"b", 2}, "b": {"0", 2}, "c": {"b", 2}}, ""},
	} {
		var seen []etcdView
		want := (*Etcd)(nil)
		for _, id := range []string{"a", "b", "c"} {
			v := etcdView{node: new(Etcd)}
			if say, ok := c.says[id]; ok {
				v.vars.Raft.ID, v.vars.Raft.Lead, v.vars.Raft.Term = id, say.lead, say.term
			} else {
				v.err = errors.New("silent")
			}
			if id == c.want {
				want = v.node
			}
			seen = append(seen, v)
		}
		if got := agreed(seen, 3); got != want {
			t.Errorf("%s: not %q", name, c.want)
		}
	}
}

func TestEtcdFsync(t *testing.T) {
	t.Parallel()
	for _, fsync := range []bool{false, true} {
		args := etcdArgs("n", "c", &loopback.Port{}, &loopback.Port{}, EtcdOptions{Fsync: fsync})
		if slices.Contains(args, "--unsafe-no-fsync") == fsync {
			t.Errorf("with fsync %v: %q", fsync, args)
		}
	}
}

func TestModuleRoot(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Dir(filepath.Dir(here))
	for _, dir := range []string{"../..", ".", "../../test/etcd"} {
		t.Chdir(filepath.Join(here, dir))
		if root, ok := moduleRoot(); !ok || root != want {
			t.Errorf("from %s: %q, %v", dir, root, ok)
		}
	}
	t.Chdir(t.TempDir())
	if root, ok := moduleRoot(); ok {
		t.Errorf("outside of the module: %q", root)
	}
}
