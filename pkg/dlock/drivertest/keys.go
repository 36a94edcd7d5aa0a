package drivertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/ceyewan/genesis/internal/metronome"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// NastyKeys returns valid key names that have caused failures in practice: separators, glob and path
// characters, hash tags, fragments of protocols and scripts.
func NastyKeys() []string {
	return []string{
		"a", "a/b", "a/b/c", "/a", "a/", "//", ".", "..", "../a", "a/../b", "a.b", "a:b", "a b", " a", "a ",
		"{a}", "{a}b", "b{a}", "{", "}", "{}", "}{", "{}a", "a{b", "a}b", "{{a}}", "{a}{b}", "}a{", "a{}b{c}",
		"*", "?", "[a]", "a*", "\\", "\\a", "a\\b", "%", "%2F", "a%2Fb", "%00", "&", "a&b=c", "#", "~", "`", "$HOME", "$(a)", "'", "\"", "''",
		"return redis.call('FLUSHALL')", "\"]] os.exit() --", "KEYS[1]", "*1$4PING", "-ERR", "+OK",
		"a-b", "a_b", "A", "Ä", "ä", "a\u0308", "а", "α", "日本", "🔒", "\ufffd", "ﬀ", "ß", "İ", "ı",
		"queue", "fence", "lock", "con", "nul", "-", "--", "-rf", "0", "00", "-1", "1e3", "true", "null", "nil",
		strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("a", 1024), strings.Repeat("/", 512), strings.Repeat("é", 512),
	}
}

// hostileKeys: names are independent of each other, whatever they look like, and are returned
// unchanged.
func hostileKeys(s *suite) {
	d, other := s.open(), s.open()
	names := NastyKeys()
	rng := rand.New(rand.NewPCG(1, 2))
	for range min(300, max(100, s.Grants)) {
		names = append(names, randomKey(rng))
	}
	held := map[string]driver.Ref{}
	for _, name := range names {
		if _, ok := held[name]; ok {
			continue
		}
		r := s.ref(name)
		var st driver.State
		_, err := s.ask(func() (err error) { st, err = d.Acquire(s.ctx, request(r)); return err })
		if errors.Is(err, driver.ErrInvalidKey) {
			continue // always refused: a backend may do that
		}
		if err != nil || st.Phase != driver.Held {
			s.Fatalf("Acquire(%q) = %v, %v, though no such key is held", name, st.Phase, err)
		}
		held[name] = r
	}
	s.checkListed(d, held)
	for name, r := range held {
		s.submit(other, request(s.ref(name)), driver.Gone)
		s.release(d, r, driver.Held)
		s.submit(other, request(s.ref(name)), driver.Held)
	}
}

func (s *suite) checkListed(d driver.Driver, held map[string]driver.Ref) {
	s.Helper()
	a := s.admin(d)
	if a == nil {
		return
	}
	listed := map[string]bool{}
	for cursor := ""; ; {
		keys, next := s.list(a, "", cursor, 100)
		for _, k := range keys {
			listed[k] = true
			if _, ok := held[k]; !ok {
				s.Errorf("%q is listed, and was never taken", k)
			}
		}
		if next == "" {
			break
		}
		cursor = next
	}
	for name, r := range held {
		if !listed[name] {
			s.Errorf("%q is held and not listed", name)
		}
		claims := s.inspect(a, name)
		if len(claims) != 1 || claims[0].ID != r.ID {
			s.Errorf("Inspect(%q) = %v", name, claims)
		}
	}
}

func randomKey(rng *rand.Rand) string {
	const alphabet = "ab/{}:.*?[]\\%$ -_é日🔒"
	letters := []rune(alphabet)
	key := make([]rune, 1+rng.IntN(12))
	for i := range key {
		key[i] = letters[rng.IntN(len(letters))]
	}
	return string(key)
}

// prefixes: drivers with different prefixes do not share keys. If one prefix starts with another,
// the shorter one sees the longer one's keys, with the rest of that prefix as part of their names.
func prefixes(s *suite) {
	a, b, none := s.openAs(driver.Options{Prefix: s.Prefix + "a:"}), s.openAs(driver.Options{Prefix: s.Prefix + "b:"}), s.openAs(driver.Options{})
	s.submit(a, request(s.ref("k")), driver.Held)
	s.submit(b, request(s.ref("k")), driver.Held)
	s.submit(none, request(s.ref(s.Prefix+"k")), driver.Held)
	s.submit(s.openAs(driver.Options{Prefix: s.Prefix + "a:"}), request(s.ref("k")), driver.Gone)
	if admin := s.admin(b); admin != nil {
		keys, _ := s.list(admin, "", "", 10)
		if fmt.Sprint(keys) != "[k]" {
			s.Errorf("below its prefix b sees %q", keys)
		}
	}
}

// FuzzKeys fuzzes key names against a backend: a valid name is either refused with ErrInvalidKey or
// works exactly, next to any other name.
func FuzzKeys(f *testing.F, newHarness func(*testing.T) *Harness) {
	metronome.Start(f) // else every input starts and ends its own
	nasty := NastyKeys()
	for i, name := range nasty {
		f.Add(name, nasty[(i+1)%len(nasty)])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		if !valid(one) || !valid(two) || one == two {
			return
		}
		s := newSuite(t, newHarness(t), &config{})
		d := s.open()
		for _, name := range []string{one, two} {
			r := s.ref(name)
			var st driver.State
			_, err := s.ask(func() (err error) { st, err = d.Acquire(s.ctx, request(r)); return err })
			if errors.Is(err, driver.ErrInvalidKey) {
				return
			}
			if err != nil || st.Phase != driver.Held {
				t.Fatalf("Acquire(%q) next to %q: %v, %v", name, one, st.Phase, err)
			}
			defer s.release(d, r, driver.Held)
		}
	})
}

// valid reports whether the engine passes a key to a driver.
func valid(key string) bool {
	return key != "" && len(key) <= 1024 && utf8.ValidString(key) && !strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) })
}
