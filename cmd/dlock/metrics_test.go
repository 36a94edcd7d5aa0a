//go:build unix

package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// textfile reads metrics as node_exporter would, and what the value of key is in each line.
func textfile(t *testing.T, path, key string) map[string]float64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	values, typed := map[string]float64{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if of, ok := strings.CutPrefix(line, "# TYPE "); ok {
			typed[strings.TrimSuffix(of, " gauge")] = true
		}
		if strings.HasPrefix(line, "# ") {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		label, value, _ := strings.Cut(rest, "} ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !typed[name] || label != `key="`+key+`"` {
			t.Fatalf("%v: %q", err, line)
		}
		values[name] = v
	}
	return values
}

func wantMetrics(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if g, ok := got["dlock_run_"+name]; !ok || g != v {
			t.Errorf("%s is %v, want %v, in %v", name, g, v, got)
		}
	}
}

// Each run leaves its metrics for node_exporter, whether it got the lock or not.
func TestRunWritesMetrics(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		dir := t.TempDir()
		path := filepath.Join(dir, "job.prom")
		const key, escaped = `a "b" \c`, `a \"b\" \\c`
		began := time.Now()
		if _, errs, code := dlock(t, backend, "run", "--metrics-textfile", path, key, "--", "sh", "-c", "sleep 0.1; exit 3"); code != 3 || errs != "" {
			t.Fatalf("exit %d, %s", code, errs)
		}
		got := textfile(t, path, escaped)
		wantMetrics(t, got, map[string]float64{"acquired": 1, "lost": 0, "skipped": 0, "exit_code": 3, "command_exit_code": 3})
		at := time.UnixMilli(int64(got["dlock_run_timestamp_seconds"] * 1000))
		if hold := got["dlock_run_hold_seconds"]; hold < 0.1 || hold > time.Since(began).Seconds() || at.Before(began.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("began %v: %v", began, got)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%v, %v", st, err)
		}

		holds(t, backend, "ann", key)
		_, _, code := dlock(t, backend, "run", "--metrics-textfile", path, "--wait", "2s", "-E", "64", key, "--", "true")
		ran := got["dlock_run_timestamp_seconds"]
		got = textfile(t, path, escaped)
		wantMetrics(t, got, map[string]float64{"acquired": 0, "exit_code": 64, "hold_seconds": 0, "command_exit_code": 3, "lost": 0, "command_timestamp_seconds": ran})
		if code != 64 || got["dlock_run_wait_seconds"] < 2 || got["dlock_run_timestamp_seconds"] <= ran {
			t.Errorf("exit %d, %v", code, got)
		}

		before, _ := os.ReadFile(path)
		if _, errs, code := dlock(t, backend, "run", "--metrics-textfile", path, "--ttl", "-1s", key, "--", "true"); code != 64 {
			t.Errorf("exit %d, %s", code, errs)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("wrong arguments have changed it: %s", after)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%v, %v", left, err)
		}
	})
}

// A lock that was lost is counted, and a run that was not due.
func TestRunWritesLossesAndSkips(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		path := filepath.Join(t.TempDir(), "job.prom")
		h := wrap(t, l.backend, "obedient", filepath.Join(t.TempDir(), "w"), append([]string{"--metrics-textfile", path}, graciously("k")...)...)
		h.says(t, "ready")
		l.remove(t, "k")
		if code := h.ends(t); code != 76 {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
		wantMetrics(t, textfile(t, path, "k"), map[string]float64{"acquired": 1, "lost": 1, "exit_code": 76, "command_exit_code": 7})
		for skipped, want := range []int{3, 64} {
			if _, errs, code := dlock(t, l.backend, "run", "--metrics-textfile", path, "--every", "1h", "-E", "64", "job", "--", "sh", "-c", "exit 3"); code != want {
				t.Errorf("exit %d, %s", code, errs)
			}
			wantMetrics(t, textfile(t, path, "job"), map[string]float64{
				"acquired": float64(1 - skipped), "skipped": float64(skipped), "exit_code": float64(want), "command_exit_code": 3, "lost": 0,
			})
		}
	})
}

// A file that cannot be written is reported, and the command's own code counts. A name that node_exporter would not read
// is refused.
func TestRunCannotWriteMetrics(t *testing.T) {
	t.Parallel()
	backend, dir := files(t), t.TempDir()
	missing := filepath.Join(dir, "missing", "job.prom")
	if _, errs, code := dlock(t, backend, "run", "--metrics-textfile", missing, "k", "--", "sh", "-c", "exit 3"); code != 3 || !strings.Contains(errs, "the metrics were not written: --metrics-textfile: ") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if err := os.Mkdir(filepath.Join(dir, "a.prom"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := dlock(t, backend, "run", "--json", "--metrics-textfile", filepath.Join(dir, "a.prom"), "k", "--", "no-such-command"); code != 127 || !strings.Contains(errs, `"event":"metrics-failed"`) {
		t.Errorf("exit %d, %s", code, errs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	for _, name := range []string{"job.txt", ""} {
		if _, errs, code := dlock(t, backend, "run", "--metrics-textfile", name, "k", "--", "true"); code != 64 || !strings.Contains(errs, ".prom") {
			t.Errorf("%q: exit %d, %s", name, code, errs)
		}
	}
}

// A collector receives metrics over HTTP.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	got    []*metricpb.ExportMetricsServiceRequest
	header string
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m := new(metricpb.ExportMetricsServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, m)
		}
		if err != nil || r.URL.Path != "/base/v1/metrics" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got, c.header = append(c.got, m), r.Header.Get("X-Key")
	}))
	t.Cleanup(c.Close)
	return c
}

// values are the metrics of the only request.
func (c *collector) values(t *testing.T) (values map[string]float64, resource, labels string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) != 1 || c.header != "secret" {
		t.Fatalf("%d requests, with header %q", len(c.got), c.header)
	}
	values = map[string]float64{}
	r := c.got[0].ResourceMetrics[0]
	for _, m := range r.ScopeMetrics[0].Metrics {
		p := m.GetGauge().DataPoints[0]
		values[m.Name+m.Unit], labels = p.GetAsDouble(), p.Attributes[0].Key+"="+p.Attributes[0].Value.GetStringValue()
	}
	for _, a := range r.Resource.Attributes {
		if a.Key == "service.name" {
			resource = a.Value.GetStringValue()
		}
	}
	return values, resource, labels
}

// runWith is a run with variables of OpenTelemetry.
func runWith(t *testing.T, variables []string, args ...string) (errs string, code int) {
	t.Helper()
	cmd := command(files(t), append([]string{"run"}, args...)...)
	cmd.Env = append(cmd.Env, variables...)
	_, errs, code = finish(t, cmd)
	return errs, code
}

// The standard variables name a collector.
func TestRunSendsMetrics(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	errs, code := runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL + "/base", "OTEL_EXPORTER_OTLP_HEADERS=x-key=secret", "OTEL_SERVICE_NAME=nightly"},
		"k", "--", "sh", "-c", "exit 3")
	if code != 3 || errs != "" {
		t.Errorf("exit %d, %s", code, errs)
	}
	values, service, labels := c.values(t)
	if values["dlock.run.acquired"] != 1 || values["dlock.run.exit_code"] != 3 || values["dlock.run.timestamps"] == 0 || service != "nightly" || labels != "key=k" {
		t.Errorf("%v of %s, %s", values, service, labels)
	}
}

// What the variables do not ask for is not sent: over gRPC, by another exporter, or at all.
func TestRunSendsNoMetrics(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	for _, v := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_METRICS_EXPORTER=none", "OTEL_SDK_DISABLED=true"} {
		if errs, code := runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, v}, "k", "--", "true"); code != 0 || errs != "" {
			t.Errorf("%s: exit %d, %s", v, code, errs)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) != 0 {
		t.Errorf("%d requests", len(c.got))
	}
}

// A collector that is away, or hangs, costs a line and a moment, and not the exit code.
func TestRunCannotSendMetrics(t *testing.T) {
	t.Parallel()
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nothing answers
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	for _, endpoint := range []string{"http://127.0.0.1:1", "http://" + hangs.Addr().String(), "localhost:4318", "http://%zz"} {
		began := time.Now()
		errs, code := runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "OTEL_EXPORTER_OTLP_HEADERS=wrong", impatient}, "k", "--", "sh", "-c", "exit 3")
		if took := time.Since(began); code != 3 || took > 30*time.Second || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "dlock: the metrics were not written: OTEL_EXPORTER_OTLP_ENDPOINT") {
			t.Errorf("%s: exit %d after %v, %s", endpoint, code, took, errs)
		}
	}
}

// The query of a URL that a collector redirects to may be a secret.
func TestRunHidesQueriesOfCollectors(t *testing.T) {
	t.Parallel()
	c := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/v1/metrics?sig=secret", http.StatusTemporaryRedirect))
	defer c.Close()
	errs, code := runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL}, "k", "--", "true")
	if code != 0 || strings.Contains(errs, "secret") || !strings.Contains(errs, "127.0.0.1:1/v1/metrics") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// A signal while metrics are sent ends the sending, and the command's own code counts.
func TestRunSendsMetricsUntilASignal(t *testing.T) {
	t.Parallel()
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	cmd := command(files(t), "run", "k", "--", "sh", "-c", "exit 3")
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+hangs.Addr().String())
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := hangs.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless it has ended
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "the metrics were not written") {
		t.Errorf("exit %d, %s", code, errs.String())
	}
}
