package dashboard

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/election"
)

var driverOptions = driver.Options{}

type adminDriver = driver.Admin

// A schema is the part of JSON Schema that openapi.json uses.
type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Enum                 []any
	Items                *schema
	Properties           map[string]*schema
	Required             []string
	AdditionalProperties *bool
}

type document struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

func described(t *testing.T) *document {
	t.Helper()
	text, err := assets.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.1.0" || len(d.Components.Schemas) == 0 {
		t.Fatalf("%+v", d)
	}
	return &d
}

// check returns what is wrong with a value.
func (d *document) check(at string, s *schema, v any) error {
	if s.Ref != "" {
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		if d.Components.Schemas[name] == nil {
			return fmt.Errorf("%s: there is no %s", at, s.Ref)
		}
		return d.check(at, d.Components.Schemas[name], v)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Errorf("%s: %v is none of %v", at, v, s.Enum)
	}
	kinds, several := s.Type.([]any)
	if !several {
		kinds = []any{s.Type}
	}
	if !slices.ContainsFunc(kinds, func(k any) bool { return isKind(v, k) }) {
		return fmt.Errorf("%s: %v is no %v", at, v, s.Type)
	}
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if err := d.check(fmt.Sprintf("%s[%d]", at, i), s.Items, e); err != nil {
				return err
			}
		}
	case map[string]any:
		return d.checkObject(at, s, v)
	}
	return nil
}

func (d *document) checkObject(at string, s *schema, v map[string]any) error {
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s has no %s", at, name)
		}
	}
	for name, e := range v {
		p := s.Properties[name]
		if p == nil {
			return fmt.Errorf("%s has %s, which is not described", at, name)
		}
		if err := d.check(at+"."+name, p, e); err != nil {
			return err
		}
	}
	return nil
}

func isKind(v, kind any) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || (kind == "integer" && v == math.Trunc(v))
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return false
}

// Every path of the API is described, and every path that is described exists.
func TestOpenAPIPaths(t *testing.T) {
	d := described(t)
	f := setUp(t, WithEvict())
	text, err := routesSource()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`HandleFunc\("(GET|POST) (/(?:api/|metrics)[^"]*)"`).FindAllStringSubmatch(text, -1) {
		if _, ok := d.Paths[m[2]][strings.ToLower(m[1])]; !ok {
			t.Errorf("%s %s is not described", m[1], m[2])
		}
	}
	for path, operations := range d.Paths {
		for method := range operations {
			if path == "/api/v1/stream" {
				continue // does not end
			}
			if got := f.request(strings.ToUpper(method), path, "").StatusCode; got == http.StatusMethodNotAllowed || got == http.StatusNotFound && !strings.Contains(path, "lock") {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}
}

// Answers, also those that refuse, are as described.
func TestOpenAPIAnswers(t *testing.T) {
	d := described(t)
	f := setUp(t, WithEvict())
	g := f.take("k", dlock.WithInfo(dlock.Info{Owner: "ann", Host: "h", PID: 1, Purpose: "p"}))
	f.take("free-soon", dlock.WithPermits(3))
	<-f.take("lost", dlock.WithMaxHold(time.Millisecond)).Context().Done()
	f.elect("billing:leader", election.WithValue("10.0.0.7:8080"))
	f.run("report", time.Hour, succeed)
	f.take("backup", dlock.WithInfo(dlock.Info{Owner: "eve"})) // runs
	f.take("backup:runs", dlock.WithShared(), dlock.WithInfo(dlock.Info{Purpose: "failed in 1s: no"}))
	f.eventually("the value", func() bool { return f.leaders()[0].Value != "" })
	stop := f.queue("k", dlock.WithInfo(dlock.Info{Owner: "bob", Host: "h", PID: 2}))
	defer stop()
	next, _ := f.follow()
	f.checkEvents(d, next)
	kind := []string{"Content-Type", "application/json"}
	token := fmt.Sprint(g.Token())
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             string
	}{
		{"GET", "/api/v1/locks", "", nil, "200"},
		{"GET", "/api/v1/locks?source=memory&prefix=k", "", nil, "200"},
		{"GET", "/api/v1/locks?source=none", "", nil, "404"},
		{"GET", "/api/v1/locks", "", []string{"Host", "evil.example"}, "421"},
		{"GET", "/api/v1/locks", "", []string{"Origin", "http://evil.example"}, "403"},
		{"GET", "/api/v1/lock?source=memory&key=k", "", nil, "200"},
		{"GET", "/api/v1/lock?source=memory&key=nothing", "", nil, "200"},
		{"GET", "/api/v1/lock?source=none&key=k", "", nil, "404"},
		{"GET", "/api/v1/lock?source=memory&key=report", "", nil, "200"},
		{"GET", "/api/v1/lock?source=memory&key=billing:leader", "", nil, "200"},
		{"GET", "/api/v1/leaders", "", nil, "200"},
		{"GET", "/api/v1/leaders?source=none", "", nil, "404"},
		{"GET", "/api/v1/jobs?source=memory", "", nil, "200"},
		{"GET", "/api/v1/jobs?source=none", "", nil, "404"},
		{"GET", "/api/v1/health", "", nil, "200"},
		{"GET", "/healthz", "", nil, "200"},
		{"POST", "/api/v1/evict", "{", kind, "400"},
		{"POST", "/api/v1/evict", "{}", nil, "415"},
		{"POST", "/api/v1/evict", `{"source":"memory","key":"x","token":"1","confirm":"x"}`, kind, "409"},
		{"POST", "/api/v1/evict", `{"source":"none","key":"x","token":"1","confirm":"x"}`, kind, "404"},
		{"POST", "/api/v1/evict", `{"source":"memory","key":"k","token":"` + token + `","confirm":"k"}`, kind, "200"},
		{"GET", "/api/v1/lock?source=memory&key=k", "", nil, "200"},
	} {
		answer := f.request(c.method, c.path, c.body, c.headers...)
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		path, _, _ := strings.Cut(c.path, "?")
		response, ok := d.Paths[path][strings.ToLower(c.method)].Responses[fmt.Sprint(answer.StatusCode)]
		if fmt.Sprint(answer.StatusCode) != c.status || !ok {
			t.Errorf("%s %s: %d, want %s: %s", c.method, c.path, answer.StatusCode, c.status, text)
			continue
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		if err := d.check(c.path, response.Content["application/json"].Schema, v); err != nil {
			t.Errorf("%v in %s", err, text)
		}
	}
}

// checkEvents compares one event of each kind with its schema.
func (f *fixture) checkEvents(d *document, next func() event) {
	f.Helper()
	names := map[string]string{"hello": "Hello", "update": "Update", "findings": "Findings", "own_locks": "OwnLocksEvent", "rings": "Rings", "beat": "Beat"}
	seen := map[string]bool{}
	for len(seen) < len(names) {
		e := next()
		var v any
		if err := json.Unmarshal([]byte(e.data), &v); err != nil {
			f.Fatal(err)
		}
		if names[e.name] == "" {
			f.Fatalf("the event %s is not described", e.name)
		}
		if err := d.check(e.name, d.Components.Schemas[names[e.name]], v); err != nil {
			f.Errorf("%v in %s", err, e.data)
		}
		seen[e.name] = true
	}
}

// routesSource returns the source that registers the paths.
func routesSource() (string, error) {
	text, err := os.ReadFile("routes.go")
	return string(text), err
}
