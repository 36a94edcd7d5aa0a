package dlock_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Config is written as a file of configuration has it, and is read back.
func TestConfigIsReadBack(t *testing.T) {
	same := func(cfg dlock.Config) bool {
		text, err := json.Marshal(&cfg)
		var back dlock.Config
		return err == nil && json.Unmarshal(text, &back) == nil && back == cfg
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(dlock.Config{DefaultTTL: 7 * second})
	if err != nil || !strings.Contains(string(text), `"default_ttl":"7s"`) {
		t.Errorf("%s, %v", text, err)
	}
	cfg := dlock.Config{Prefix: "p:"}
	if err := json.Unmarshal([]byte(`{"backend":"redis","default_ttl":"10s","retry_interval":"50ms"}`), &cfg); err != nil ||
		cfg != (dlock.Config{Backend: dlock.BackendRedis, Prefix: "p:", DefaultTTL: 10 * second, RetryInterval: 50 * time.Millisecond}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, text := range []string{`{"default_ttl":10}`, `{"default_ttl":"10"}`, `{"default_tll":"10s"}`, `{"max_retries":"3"}`, `[]`} {
		if err := json.Unmarshal([]byte(text), &cfg); err == nil {
			t.Errorf("%s is read as %+v", text, cfg)
		}
	}
}
