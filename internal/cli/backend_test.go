package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/clog"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]URL{
		"file:///var/lock/a%20b":              {Scheme: "file", Path: "/var/lock/a b"},
		"redis://host":                        {Scheme: "redis", Hosts: []string{"host"}},
		"REDIS://u:p%40ss@host:1/2":           {Scheme: "redis", User: "u", Password: "p@ss", Hosts: []string{"host:1"}, Path: "2"},
		"redis://:p@ss@host":                  {Scheme: "redis", Password: "p@ss", Hosts: []string{"host"}},
		"redis+sentinel://a,b:2,[::1]:3/m/1/": {Scheme: "redis+sentinel", Hosts: []string{"a", "b:2", "[::1]:3"}, Path: "m/1"},
	} {
		u, err := ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		u.params, u.written = nil, ""
		if !reflect.DeepEqual(*u, want) {
			t.Errorf("%s: %+v, not %+v", raw, *u, want)
		}
	}
}

func TestWithPort(t *testing.T) {
	u := URL{Hosts: []string{"a", "b:2", "[::1]", "[::1]:3", "c:"}}
	if got := strings.Join(u.WithPort("9"), " "); got != "a:9 b:2 [::1]:9 [::1]:3 c:9" {
		t.Error(got)
	}
}

// An error names the part that is wrong, and has no password in it.
func TestBadURLs(t *testing.T) {
	w := &app{getenv: func(string) string { return "" }, schemes: map[string]Scheme{"redis": func(u *URL, _ clog.Logger) (*Backend, error) {
		u.Int("n")
		u.Bool("b")
		return &Backend{}, nil
	}}}
	for raw, part := range map[string]string{
		"":                          "no scheme",
		"localhost:6379":            "no scheme",
		"://x":                      "no scheme",
		"mysql://u:secret@h":        `scheme "mysql" is none of file, redis`,
		"file://relative/path":      "path:",
		"file:///a%zz":              "path:",
		"redis://":                  "host: there is none",
		"redis://u:secret@":         "host: there is none",
		"redis://u:secret@a,,b":     "host 2: empty",
		"redis://u:sec%ret@h":       "user or password",
		"redis://u:sec/ret@h":       "user or password",
		"redis://u:secret?x@h":      "user or password: a ?",
		"redis://u:12?secret=x@h:1": "user or password: a ?",
		"redis://u:s@e?n=secret@h":  "user or password: a ?",
		"redis://u:secret":          "host 1: its port is no number",
		"redis://u:secret@h:port":   "host 1: its port is no number",
		"redis://u:secret@h/%zz":    "path:",
		"redis://u:secret@h?%zz":    "parameters:",
		"redis://u:secret@h?n=x":    "parameter n:",
		"redis://u:secret@h?n=-1":   "parameter n:",
		"redis://u:secret@h?b=x":    "parameter b:",
		"redis://u:secret@h?what=1": "parameter what: not known for redis",
	} {
		_, err := w.byURL("DLOCK_BACKEND", raw, clog.Logger{})
		if err == nil || !strings.Contains(err.Error(), part) || !strings.HasPrefix(err.Error(), "DLOCK_BACKEND: ") {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec/ret")) {
			t.Errorf("%s: the error has the password: %v", raw, err)
		}
	}
	if _, err := w.byURL("--backend", "redis://u:secret@h", clog.Logger{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a password in the arguments: %v", err)
	}
}

// The documented spelling of a % names a file that is missing.
func TestPercentInFileName(t *testing.T) {
	w := &app{getenv: func(string) string { return "" }}
	dir := "file://" + urlPath(t.TempDir())
	b, err := w.byURL("--backend", dir+"/50%25.lock", clog.Logger{})
	if err != nil || b.OnlyKey != "50%" {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := w.byURL("--backend", dir+"/order%3a1.lock", clog.Logger{}); err == nil {
		t.Error("a name that a script may mean without escapes is not refused")
	}
}

// The default does not depend on the environment: a crontab and a shell meet.
func TestDefaultBackend(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	w := &app{getenv: func(string) string { return "" }}
	b, err := w.choose(clog.Logger{})
	if err != nil || b.Name != "file" || b.Where != "file://"+urlPath(DefaultDir()) || !filepath.IsAbs(DefaultDir()) || localPath(urlPath(DefaultDir())) != DefaultDir() {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestBackendAndConfig(t *testing.T) {
	w := &app{getenv: os.Getenv, backend: "file:///x", config: "y"}
	if _, err := w.choose(clog.Logger{}); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Error(err)
	}
}

// A program that was built without servers says so.
func TestServersAreNotBuiltIn(t *testing.T) {
	t.Parallel()
	w := &app{getenv: func(string) string { return "" }}
	for _, open := range []func() (*Backend, error){
		func() (*Backend, error) { return w.byURL("--backend", "redis://localhost", clog.Logger{}) },
		func() (*Backend, error) { return w.byConfig("service.yaml", clog.Logger{}) },
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "built with the tag filesonly") {
			t.Errorf("%v", err)
		}
	}
}
