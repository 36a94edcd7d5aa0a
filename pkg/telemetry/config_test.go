package telemetry_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/ceyewan/genesis/pkg/telemetry"
)

// A Config is written as a file of configuration has it, and is read back.
func TestConfigIsReadBack(t *testing.T) {
	same := func(cfg telemetry.Config) bool {
		text, err := json.Marshal(cfg)
		var back telemetry.Config
		return err == nil && json.Unmarshal(text, &back) == nil && back == cfg
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(telemetry.Config{ExportInterval: 90 * time.Second})
	if err != nil || !strings.Contains(string(text), `"export_interval":"1m30s"`) {
		t.Errorf("%s, %v", text, err)
	}
	var cfg telemetry.Config
	for _, text := range []string{`{"export_interval":60}`, `{"export_intervall":"60s"}`} {
		if err := json.Unmarshal([]byte(text), &cfg); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}
