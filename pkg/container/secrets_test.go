package container_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/container"
)

// forms are ways to write a value so that YAML takes it for something else, or so that it does not
// fit its place.
var forms = map[string]string{
	"alias": "*%s", "anchor": "&%s", "anchored twice": "&a [*a, %s]", "tag": "!%s x", "long tag": "!<%s> x", "tag alone": "!%s",
	"handle": "!e!%s x", "directive": "%%%s", "at": "@%s", "backtick": "`%s", "backtick in quotes": "\"ab`%s\"", "ends in a backtick": "\"%s`\"",
	"backtick, then into": "\"ab` into %s\"", "quote": "'%s", "double quote": "\"%s", "escape": "\"\\%s\"", "hex escape": "\"\\x%s\"",
	"block": "|%s", "folded": ">%s", "pipe": "|\n    %s", "key": "%s: x", "key and lines": "%s: x\n  y: z",
	"mapping": "{%s}", "mapping with a value": "{%s: x}", "list": "[%s]", "open list": "[%s", "open mapping": "{%s", "question": "? %s", "comma": "{a: b,%s}",
	"int": "!!int %s", "bool": "!!bool %s", "binary": "!!binary %s!", "float": "!!float %s", "timestamp": "!!timestamp %s", "null": "!!null %s",
	"merge": "\n    <<: %s", "merge of an alias": "\n    <<: *%s", "twice": "a\n  db: %s", "no space": "a\n  db:%s", "tab": "\t%s",
	"null byte": "%s\x00", "no UTF-8": "%s\xff", "plain": "%s", "long": "%s%[1]s%[1]s%[1]s", "colon": "a:%s", "dash": "- %s", "document": "a\n--- %s", "end": "a\n... %s",
}

// No error about a file shows any part of a value, whatever its form and its field are.
func TestNoValueInErrors(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		value := fmt.Sprintf(forms[name], secret)
		for _, field := range []string{"password", "db", "pool_size", "dial_timeout", "cluster", "addrs", "tls"} {
			if field == "tls" && strings.Contains(value, secret+": ") {
				continue // the name of a field there, and no value
			}
			for _, text := range []string{
				"redis:\n  addr: a:1\n  " + field + ": " + value + "\n",
				"redis: {addr: a:1, " + field + ": " + value + "}\n",
				"redis: {addr: a:1, " + field + ": abc," + secret + "}\n",
				field + ": " + value + "\n",
			} {
				_, err := container.Load(file(t, "a.yaml", text))
				if err == nil {
					continue
				}
				if !errors.Is(err, container.ErrInvalidConfig) || shows(err, secret) {
					t.Errorf("%s as %s: %v\n%s", name, field, err, text)
				}
			}
		}
	}
}

// shows reports whether an error contains a part of a secret, anywhere in its chain.
func shows(err error, secret string) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if text := fmt.Sprintf("%v %+v %#v", e, e, e); strings.Contains(text, secret) || strings.Contains(text, secret[:5]) {
			return true
		}
	}
	return false
}

// The message still helps.
func TestErrorsSayWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis:\n  password: *hunter2\n":                     "a value begins with * and is the name of nothing: put it in quotes",
		"redis:\n  pool_size: \"ab`hunter2\"\n":              "line 2: cannot unmarshal !!str a value into int",
		"redis:\n  password: !!int hunter2\n":                "a value does not fit to the tag (!) before it: put it in quotes",
		"redis:\n  password: !hunter2 {}\n":                  "line 2: cannot unmarshal",
		"redis:\n  password: a\n  password: hunter2\n":       "line 3: a key is there again, after line 2",
		"redis:\n  password: hunter2: x\n":                   "line 2: mapping values are not allowed in this context",
		"redis: hunter2\n":                                   "line 1: cannot unmarshal !!str a value into a section",
		"redis: {password: abc,hunter2}\n":                   "line 1: a field is not known",
		"redis: {pasword: abc}\n":                            "line 1: field pasword is not known",
		"redis:\n  dial_timeout: hunter2\n  db: [hunter2]\n": "line 2: cannot unmarshal !!str a value into time.Duration; line 3: cannot unmarshal !!seq",
	} {
		_, err := container.Load(file(t, "a.yaml", text))
		if err == nil || !strings.Contains(err.Error(), want) || shows(err, "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// No error about the environment shows a value.
func TestNoValueInErrorsOfTheEnvironment(t *testing.T) {
	const secret = "hunter2"
	for _, name := range []string{
		"DLOCK_MAX_RETRIES", "DLOCK_DEFAULT_TTL", "DLOCK_REQUIRE_FAIR", "LOG_ADD_SOURCE", "REDIS_DB", "REDIS_DIAL_TIMEOUT",
		"REDIS_CLUSTER", "REDIS_TLS_ENABLED", "ETCD_DIAL_TIMEOUT", "REDLOCK_DB", "FILE_SHARED", "REDIS_PASWORD",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GENESIS_"+name, secret)
			t.Setenv("GENESIS_REDIS_PASSWORD", secret)
			_, err := container.Load("")
			if err == nil || shows(err, secret) || !strings.Contains(err.Error(), "GENESIS_"+name) {
				t.Error(err)
			}
		})
	}
}

// kubernetes sets the variables that a container sees for a Service in its namespace.
func kubernetes(t *testing.T, service, port string) {
	t.Helper()
	for name, value := range map[string]string{
		"_SERVICE_HOST": "10.0.0.1", "_SERVICE_PORT": port, "_SERVICE_PORT_CLIENT": port, "_PORT": "tcp://10.0.0.1:" + port,
		"_PORT_" + port + "_TCP": "tcp://10.0.0.1:" + port, "_PORT_" + port + "_TCP_PROTO": "tcp",
		"_PORT_" + port + "_TCP_PORT": port, "_PORT_" + port + "_TCP_ADDR": "10.0.0.1",
	} {
		t.Setenv(service+name, value)
	}
}

// The variables that Kubernetes injects are not settings, and create no section.
func TestKubernetesServices(t *testing.T) {
	for _, service := range []string{"GENESIS", "GENESIS_REDIS", "GENESIS_ETCD", "GENESIS_DLOCK", "GENESIS_REDIS_TLS", "GENESIS_SHOP_API", "GENESIS_SERVICE"} {
		t.Run(service, func(t *testing.T) {
			kubernetes(t, service, "6379")
			t.Setenv("GENESIS_DLOCK_BACKEND", "memory")
			cfg, err := container.Load("")
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Redis != nil || cfg.Etcd != nil || cfg.DLock.Backend != "memory" {
				t.Errorf("%+v", cfg)
			}
			t.Setenv("GENESIS_REDIS_PASWORD", "x")
			if _, err := container.Load(""); err == nil || !strings.Contains(err.Error(), "GENESIS_REDIS_PASWORD is not known") {
				t.Errorf("a misspelling next to a Service: %v", err)
			}
		})
	}
}

// A name that only looks similar is still refused.
func TestNotKubernetes(t *testing.T) {
	for name, value := range map[string]string{
		"GENESIS_REDIS_PORT": "6379", "GENESIS_REDIS_SERVICE_HOST": "redis.example", "GENESIS_REDIS_SERVICE_PORT": "6379",
		"GENESIS_REDIS_PORT_6379_TCP": "tcp://10.0.0.1:6379",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := container.Load(""); err == nil || !strings.Contains(err.Error(), name+" is not known") {
				t.Error(err)
			}
		})
	}
	t.Run("a port that is no URL next to a Service", func(t *testing.T) {
		t.Setenv("GENESIS_REDIS_SERVICE_HOST", "10.0.0.1")
		t.Setenv("GENESIS_REDIS_PORT", "6379")
		if _, err := container.Load(""); err == nil || !strings.Contains(err.Error(), "GENESIS_REDIS_PORT is not known") {
			t.Error(err)
		}
	})
}

// An empty variable counts as not set: it creates no section. If the file has a value, it would be
// a guess which of them is meant, and one may be a password for another server.
func TestEmptyVariable(t *testing.T) {
	t.Setenv("GENESIS_REDIS_PASSWORD", "")
	t.Setenv("GENESIS_DLOCK_MAX_RETRIES", "")
	cfg, err := container.Load(file(t, "a.yaml", "dlock:\n  backend: memory\n"))
	if err != nil || cfg.Redis != nil {
		t.Errorf("%+v, %v", cfg, err)
	}
	for text, want := range map[string]string{
		"redis:\n  addr: a:1\n  password: hunter2\n": "GENESIS_REDIS_PASSWORD is empty, and the file sets it",
		"dlock: {max_retries: 3}\n":                  "GENESIS_DLOCK_MAX_RETRIES is empty, and the file sets it",
	} {
		_, err := container.Load(file(t, "a.yaml", text))
		if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), want) || shows(err, "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
	t.Setenv("GENESIS_REDIS_PASWORD", "")
	if _, err := container.Load(""); err == nil || !strings.Contains(err.Error(), "GENESIS_REDIS_PASWORD is not known") {
		t.Errorf("a misspelling that is empty: %v", err)
	}
}
