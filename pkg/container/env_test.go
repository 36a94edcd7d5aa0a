package container_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/container"
)

// The name of a section is no variable: GENESIS_REDIS_TLS=true would otherwise be accepted,
// leave TLS off and send the password in clear.
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

// What is below such a section is known as ever.
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
