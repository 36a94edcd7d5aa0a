package container_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/container"
)

// The name of a section is not a variable: otherwise GENESIS_REDIS_TLS=true would be accepted,
// leave TLS off and send the password unencrypted.
func TestSectionIsNoVariable(t *testing.T) {
	for _, name := range []string{"GENESIS_REDIS_TLS", "GENESIS_ETCD_TLS", "GENESIS_REDLOCK_TLS"} {
		for _, value := range []string{"true", ""} {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Setenv(name, value)
				_, err := container.Load("")
				if !errors.Is(err, container.ErrInvalidConfig) || !strings.Contains(err.Error(), name+" is not known") {
					t.Errorf("Load: %v", err)
				}
			})
		}
	}
}

// Variables below such a section are still known.
func TestVariableOfASectionBelow(t *testing.T) {
	t.Setenv("GENESIS_REDIS_TLS_ENABLED", "true")
	cfg, err := container.Load("")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Redis == nil || cfg.Redis.TLS == nil || !cfg.Redis.TLS.Enabled {
		t.Errorf("redis is %v", cfg.Redis)
	}
}

// A field that the file sets by an alias or a merge counts as set; null and empty values do not.
func TestEmptyVariableAndAliases(t *testing.T) {
	for _, name := range []string{"REDLOCK_PASSWORD", "ETCD_TLS_CA_FILE", "REDIS_ADDRS"} {
		t.Setenv("GENESIS_"+name, "")
	}
	for text, want := range map[string]string{
		"redis: &r\n  password: hunter2\nredlock:\n  <<: *r\n  addrs: [a:1]\n":                   "GENESIS_REDLOCK_PASSWORD is empty",
		"redis: &r\n  password: hunter2\nredlock: *r\n":                                          "GENESIS_REDLOCK_PASSWORD is empty",
		"redis: {password: &p hunter2}\nredlock: {password: *p}\n":                               "GENESIS_REDLOCK_PASSWORD is empty",
		"redis: &r {password: hunter2}\netcd: &e {username: u}\nredlock:\n  <<: [*e, *r]\n":      "GENESIS_REDLOCK_PASSWORD is empty",
		"redis:\n  tls: &t {ca_file: /hunter2}\netcd:\n  tls: *t\n":                              "GENESIS_ETCD_TLS_CA_FILE is empty",
		"redis:\n  tls: &t {ca_file: /hunter2}\netcd:\n  tls: {<<: *t}\n":                        "GENESIS_ETCD_TLS_CA_FILE is empty",
		"redis:\n  tls: &t {ca_file: /hunter2}\netcd:\n  tls:\n    <<: *t\n    server_name: x\n": "GENESIS_ETCD_TLS_CA_FILE is empty",
		"redis: {addrs: [a:1]}\n":       "GENESIS_REDIS_ADDRS is empty",
		"redis: {addrs: []}\n":          "",
		"redis: {addrs: ~}\n":           "",
		"redlock: {password: null}\n":   "",
		"redlock: {password: ~}\n":      "",
		"redlock: {password: ''}\n":     "",
		"redlock: {password: !!str }\n": "",
	} {
		_, err := container.Load(file(t, "a.yaml", text))
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || shows(err, "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A value in place of a key, by an alias or a typing error, is not shown.
func TestNoValueAsKeyInErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"redis:\n  password: &p hunter2\n  *p : \n", "redis:\n  password: &p hunter2\n  *p : x\n", "redis: {password: abc,hunter2: ~}\n",
		"redis: {password: abc,hunter2: !!null x}\n", "redis: {password: abc,'hunter2'}\n",
	} {
		_, err := container.Load(file(t, "a.yaml", text))
		if !errors.Is(err, container.ErrInvalidConfig) || shows(err, "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
