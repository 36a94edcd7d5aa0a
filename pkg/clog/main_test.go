package clog_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/clog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logger returns a Logger, and a function that returns what it wrote since the last call, without
// times.
func logger(cfg clog.Config) (clog.Logger, func() string) {
	out := new(bytes.Buffer)
	cfg.Output = out
	return clog.New(&cfg), func() string {
		defer out.Reset()
		return times.ReplaceAllString(out.String(), "")
	}
}

var times = regexp.MustCompile(`(?m)^time=\S+ |"time":"[^"]+",|^\d\d:\d\d:\d\d\.\d{3} `)

func wrote(t *testing.T, got string, lines ...string) {
	t.Helper()
	if want := strings.Join(lines, "\n") + "\n"; got != want {
		t.Errorf("wrote\n%s\nwant\n%s", got, want)
	}
}
