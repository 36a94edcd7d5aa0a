package docs_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/clog"
)

// The lines of the page are what the three formats write, but for the time.
func TestFormatsOfLogs(t *testing.T) {
	var want strings.Builder
	for _, format := range []string{"text", "json", "console"} {
		var out bytes.Buffer
		log := clog.New(&clog.Config{Format: format, Output: &out}).WithNamespace("app").WithNamespace("dlock")
		log.With(clog.String("component", "dlock")).Info("lock acquired", clog.String("key", "order:123"))
		want.WriteString(out.String())
	}
	times := regexp.MustCompile(`(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)?`)
	for _, b := range blocksOf(t, "text") {
		if b.Page != "docs/observability.md" {
			continue
		}
		shown, real := times.ReplaceAllString(b.Text, "T"), times.ReplaceAllString(want.String(), "T")
		if shown != real {
			t.Errorf("%s has\n%sclog writes\n%s", b, shown, real)
		}
	}
}
