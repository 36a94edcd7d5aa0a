package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The metrics of a command are read as they were written, for the same key, or not at all.
func TestMetricsOfLastCommand(t *testing.T) {
	t.Parallel()
	m := RunMetrics{Key: `a "b" \c`, Metrics: commandMetrics(1, 137, 1700000000.125)}
	text := (&RunMetrics{Key: m.Key, Metrics: []Metric{{Name: "dlock.run.exit_code"}}}).text() + m.text()
	if got := m.ofLastCommand(text); !reflect.DeepEqual(got, m.Metrics) {
		t.Errorf("%v from\n%s", got, text)
	}
	if got := (&RunMetrics{Key: "other"}).ofLastCommand(text); got != nil {
		t.Errorf("of another key: %v", got)
	}
	for _, c := range []struct{ from, to string }{
		{text, ""},
		{" 137\n", " NaN\n"},
		{" 137\n", " +Inf\n"},
		{" 137\n", " -1\n"},
		{" 137\n", " 1e2\n"},
		{" 137\n", " 0137\n"},
		{" 137\n", " 137 1700000000\n"},
		{" 137\n", "\n"},
		{" 1700000000.125\n", " 1700000000.125"},
		{" 1700000000.125\n", " 99999999999999999\n"},
		{"dlock_run_lost{", "xdlock_run_lost{"},
	} {
		if wrong := strings.Replace(text, c.from, c.to, 1); wrong == text || m.ofLastCommand(wrong) != nil {
			t.Errorf("%q for %q: %v", c.to, c.from, m.ofLastCommand(wrong))
		}
	}
}

// What is not a file of ours is not read.
func TestReadTextfile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "job.prom")
	for _, name := range []string{dir, path} {
		if text := readTextfile(name); text != "" {
			t.Errorf("%s: %q", name, text)
		}
	}
	for size, want := range map[int]int{3: 3, maxTextfile + 1: 0} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := len(readTextfile(path)); got != want {
			t.Errorf("%d of %d bytes", got, size)
		}
	}
}
