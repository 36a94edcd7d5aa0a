package container_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/container"
)

// JSON keeps its standard meaning, also where YAML would read it differently or not at all.
func TestJSONStrings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`a\/b`: "a/b", `\ud83d\ude00`: "\U0001f600", "a\u2028b": "a\u2028b", "a\u0085b": "a\u0085b", "a\u007fb": "a\u007fb", `\u0000`: "\x00",
		`\ufffd`: "\ufffd", "\ufffd": "\ufffd", `a\tb`: "a\tb", "<<": "<<", "*a": "*a", "~": "~", `\"`: `"`, "null": "null", "1": "1",
	} {
		cfg, err := container.Load(file(t, "a.json", "\t{\n\t\"redis\":\t{\"password\":\t\""+text+"\"}}\n"))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if cfg.Redis.Password != want {
			t.Errorf("%q is %q", text, cfg.Redis.Password)
		}
	}
	for _, text := range []string{"", " \n", "{}", "null", "\ufeff{}", `{"redis":null}`, `{"redis":{"password":null,"addrs":null,"tls":null}}`} {
		if _, err := container.Load(file(t, "a.json", text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	cfg, err := container.Load(file(t, "a.json", `{"redis":{"addrs":["a:1","b:2"],"cluster":true,"db":3,"tls":{"enabled":true}},"dlock":{"default_ttl":"5s"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if r := cfg.Redis; strings.Join(r.Addrs, " ") != "a:1 b:2" || !r.Cluster || r.DB != 3 || r.TLS == nil || !r.TLS.Enabled || cfg.DLock.DefaultTTL != 5*time.Second {
		t.Errorf("%+v", cfg)
	}
}

// Invalid JSON, or JSON that does not fit, is refused; the error names the line and shows no
// values.
func TestJSONRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{\"redis\":\n{\"password\": hunter2}}":      "line 2: it is not valid JSON",
		"{\"redis\":\n{\"password\": \"hunter2\",}}": "line 2: it is not valid JSON",
		"{\"redis\":\n{\"password\": \"hunter2":      "line 2: it is not valid JSON",
		"{} \n# hunter2":                             "line 2: it is not valid JSON",
		"{}\n{}":                                     "line 2: it is not valid JSON, or more than one document",
		"{} hunter2":                                 "line 1: it is not valid JSON",
		"redis: {password: hunter2}":                 "line 1: it is not valid JSON",
		"{\"redis\":{\"password\":\"a\",\n\"password\":\"hunter2\"}}": "line 2: a key is there again, after line 1",
		"{\"redis\":{\n\"db\":\"hunter2\"}}":                          "line 2: cannot unmarshal !!str a value into int",
		"{\"redis\":{\n\"db\":1.5}}":                                  "line 2: cannot unmarshal !!float a value into int",
		"{\"redis\":{\n\"db\":1e0}}":                                  "line 2: cannot unmarshal !!float a value into int",
		"{\"redis\":{\n\"db\":99999999999999999999}}":                 "line 2: cannot unmarshal",
		"{\"redis\":{\n\"db\":1e999}}":                                "line 2: a number is out of range",
		"{\"redis\":{\n\"cluster\":\"hunter2\"}}":                     "line 2: cannot unmarshal !!str a value into bool",
		"{\"redis\":{\n\"addrs\":\"hunter2\"}}":                       "line 2: cannot unmarshal !!str a value into",
		"{\"redis\":\n\"hunter2\"}":                                   "line 2: cannot unmarshal !!str a value into a section",
		"{\"redis\":{\n\"Password\":\"hunter2\"}}":                    "line 2: field Password is not known",
		"{\"redis\":{\"tls\":{\n\"ca\":\"hunter2\"}}}":                "line 2: field ca is not known",
		"{\"redis\":{\n\"<<\":{\"password\":\"hunter2\"}}}":           "line 2: a field is not known",
		"{\"dlock\":{\n\"default_ttl\":5}}":                           "line 2: cannot unmarshal !!int a value into time.Duration",
		"{\"dlock\":{\n\"default_ttl\":\"hunter2\"}}":                 "line 2: cannot unmarshal !!str a value into time.Duration",
		"{\"redis\":{\n\"password\":\"hunter2\\ud800\"}}":             "line 2: a string has half a character",
		"{\"redis\":{\"password\":\"hunter2\xff\"}}":                  "it is not UTF-8",
		"\"hunter2\"":   "line 1: cannot unmarshal !!str a value into a section",
		"[\"hunter2\"]": "line 1: cannot unmarshal !!seq a value into a section",
	} {
		_, err := container.Load(file(t, "a.json", text))
		if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), want) || shows(err, "hunter2") {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
}

// An empty variable is also refused if a JSON file has a value.
func TestJSONAndEmptyVariable(t *testing.T) {
	t.Setenv("GENESIS_REDIS_PASSWORD", "")
	for text, refused := range map[string]bool{
		`{"redis":{"password":"x"}}`: true, `{"redis":{"password":""}}`: false, `{"redis":{"password":null}}`: false, `{"redis":{}}`: false,
	} {
		if _, err := container.Load(file(t, "a.json", text)); (err != nil) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}
