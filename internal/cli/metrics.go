package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// RunMetrics is what one call of dlock run has measured.
type RunMetrics struct {
	Key     string // printable, and bounded
	Version string // of dlock
	Ended   time.Time
	Metrics []Metric
}

// A Metric is one figure of a run.
type Metric struct {
	Name  string // as in OpenTelemetry, without a unit
	Unit  string // "s" or ""
	Help  string
	Value float64
}

// A MetricSender sends metrics to where the environment says, or nowhere if it says nothing.
type MetricSender func(context.Context, RunMetrics) error

const (
	maxKeyLabel = 1024    // the longest key that a lock can have
	maxTextfile = 1 << 20 // more than we write
	maxValue    = 1 << 40 // more than any exit code, and than any time in seconds
)

// checkTextfile refuses a name that node_exporter would not read.
func (r *run) checkTextfile() error {
	if r.cmd.Flags().Changed("metrics-textfile") && !strings.HasSuffix(r.textfile, ".prom") {
		return fmt.Errorf("--metrics-textfile %q does not end in .prom: node_exporter would not read it", r.textfile)
	}
	return nil
}

// publish writes and sends the metrics of a run that has ended. A failure is reported, and leaves the exit code as it is:
// the work is done.
func (r *run) publish(began time.Time, code int) {
	m := r.measured(began, code)
	var written, sent error
	if r.textfile != "" {
		file := m
		if r.commandCode == nil {
			file.Metrics = append(slices.Clip(m.Metrics), m.ofLastCommand(readTextfile(r.textfile))...)
		}
		written = writeTextfile(r.textfile, file.text())
	}
	if r.send != nil {
		sent = r.sendUntilSignal(m)
	}
	for _, err := range []error{written, sent} {
		if err != nil {
			r.reporter.event(event{What: "metrics-failed", Error: brief(err)})
		}
	}
}

// sendUntilSignal sends metrics. A signal ends that, and not us: the command's exit code is still to be returned.
func (r *run) sendUntilSignal(m RunMetrics) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.cmd.Context()), sendTimeout)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		for {
			select {
			case s := <-r.signals:
				if r.heeds(s) {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return r.send(ctx, m)
}

func (r *run) measured(began time.Time, code int) RunMetrics {
	now := time.Now()
	wait, hold := now.Sub(began), time.Duration(0)
	if r.guard != nil {
		wait, hold = r.taken.Sub(began), now.Sub(r.taken)
	}
	m := RunMetrics{Key: cut(safe(r.key), maxKeyLabel), Version: version().Version, Ended: now, Metrics: []Metric{
		{"dlock.run.acquired", "", "1 if the last run acquired the lock, 0 if not.", number(r.guard != nil)},
		{"dlock.run.skipped", "", "1 if the last run was not due, by --every, 0 if it was.", number(r.skipped)},
		{"dlock.run.wait", "s", "How long the last run waited for the lock, including connecting.", wait.Seconds()},
		{"dlock.run.hold", "s", "How long the last run held the lock, without what it left to the lease.", hold.Seconds()},
		{"dlock.run.timestamp", "s", "When the last run ended, in Unix time.", float64(now.UnixMilli()) / 1000},
		{"dlock.run.exit_code", "", "The exit code of the last dlock run.", float64(code)},
	}}
	if r.commandCode != nil {
		m.Metrics = append(m.Metrics, commandMetrics(number(r.isLost), float64(*r.commandCode), float64(now.UnixMilli())/1000)...)
	}
	return m
}

// commandMetrics are those of a run that has run its command. Others leave them as they are: a run that skips, or finds the
// lock taken, must not hide that the last command failed.
func commandMetrics(lost, code, ended float64) []Metric {
	return []Metric{
		{"dlock.run.lost", "", "1 if the last run that ran its command lost the lock before the command had ended, 0 if not.", lost},
		{"dlock.run.command_exit_code", "", "The exit code of the last command that was run.", code},
		{"dlock.run.command_timestamp", "s", "When the last run that ran its command ended, in Unix time.", ended},
	}
}

// ofLastCommand finds the metrics of a command in a text that an earlier run has written for the same key. If not all
// of them are there, as written by text, it returns none.
func (m *RunMetrics) ofLastCommand(text string) []Metric {
	found := commandMetrics(0, 0, 0)
	for i := range found {
		f := &found[i]
		_, rest, ok := strings.Cut("\n"+text, "\n"+m.sample(f))
		value, _, ended := strings.Cut(rest, "\n")
		v, err := strconv.ParseFloat(value, 64)
		plausible := v >= 0 && v <= maxValue // not so of NaN
		if !ok || !ended || err != nil || !plausible || formatValue(v) != value {
			return nil
		}
		f.Value = v
	}
	return found
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// labelEscapes are those of a label's value in the text format of Prometheus.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// text is the metrics in the text format of Prometheus.
func (m *RunMetrics) text() string {
	var b strings.Builder
	for i := range m.Metrics {
		f := &m.Metrics[i]
		name := f.promName()
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s%s\n", name, f.Help, name, m.sample(f), formatValue(f.Value))
	}
	return b.String()
}

// sample is the line of a metric up to its value.
func (m *RunMetrics) sample(f *Metric) string {
	return fmt.Sprintf("%s{key=\"%s\"} ", f.promName(), labelEscapes.Replace(m.Key))
}

// promName is the name of a metric in Prometheus.
func (f *Metric) promName() string {
	name := strings.ReplaceAll(f.Name, ".", "_")
	if f.Unit == "s" {
		name += "_seconds"
	}
	return name
}

func formatValue(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// readTextfile returns the file that is about to be replaced, or nothing if it is not one of ours.
func readTextfile(path string) string {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxTextfile { // opening a pipe would wait for a writer
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// writeTextfile replaces a file at once: node_exporter reads it at any time, as a user of its own.
func writeTextfile(path, text string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".dlock-metrics-")
	if err != nil {
		return fmt.Errorf("--metrics-textfile: %w", err)
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("--metrics-textfile: %w", err)
	}
	return nil
}
