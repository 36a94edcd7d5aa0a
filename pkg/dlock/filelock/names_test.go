package filelock_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// checkName asserts what every name of a file must be.
func checkName(t *testing.T, key string) {
	t.Helper()
	name := filelock.Name(key)
	base := strings.TrimSuffix(name, ".lock")
	switch {
	case len(name) > 143, filepath.Base(name) != name, !filepath.IsLocal(name), strings.HasPrefix(name, "."), strings.HasPrefix(name, "-"):
		t.Errorf("%q is kept in %q", key, name)
	case strings.ToLower(name) != name, strings.Trim(base, "abcdefghijklmnopqrstuvwxyz0123456789_-%~") != "":
		t.Errorf("%q is kept in %q, which some file systems change", key, name)
	}
	if back, ok := filelock.KeyOf(base); ok != !strings.HasPrefix(base, "~") || (ok && back != key) {
		t.Errorf("%q is kept in %q, which is that of %q, %v", key, name, back, ok)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	names := map[string]string{}
	keys := append([]string{"A/b", "a/B", "%41", "~", "~a", "a.lock", "a.0", ".guard-1", "k.", strings.Repeat("A", 43), strings.Repeat("a", 128), strings.Repeat("a", 129)}, drivertest.NastyKeys()...)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		key := make([]byte, 1+rng.IntN(60))
		for i := range key {
			key[i] = "aAbB/.%~-_ 09\xc3\xa4"[rng.IntN(15)]
		}
		keys = append(keys, string(key))
	}
	for _, key := range keys {
		checkName(t, key)
		name := filelock.Name(key)
		if other, ok := names[name]; ok && other != key {
			t.Errorf("%q and %q are kept in %q", key, other, name)
		}
		names[name] = key
	}
	for _, base := range []string{"", "%", "%4", "%4g", "%61", "A", "a.b", "-a", "~0"} {
		if key, ok := filelock.KeyOf(base); ok {
			t.Errorf("%q is taken for the name of %q", base, key)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, key := range drivertest.NastyKeys() {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key != "" {
			checkName(t, key)
		}
	})
}

// Characters that need no escaping stay unchanged: people pass these names to flock(1).
func TestPlainNames(t *testing.T) {
	t.Parallel()
	const plain = "abcdefghijklmnopqrstuvwxyz0123456789_-"
	if name := filelock.Name(plain); name != plain+".lock" {
		t.Errorf("%q", name)
	}
}
