//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// page starts dlock ui, and returns the address that it writes.
func page(t testing.TB, cmd *exec.Cmd) (url string, errs *transcript) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs = &transcript{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	var said struct{ URL string }
	if err := json.Unmarshal([]byte(line), &said); err == nil {
		return said.URL, errs
	}
	_, rest, _ := strings.Cut(line, "http")
	return "http" + strings.Fields(rest)[0], errs
}

// fetch asks the page, with a token if there is one.
func fetch(t testing.TB, url, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// The page shows who holds a lock, on every backend, and ends when it is told to.
func TestUI(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		holds(t, backend, "ann", "k")
		cmd := command(backend, "ui", "--listen", "127.0.0.1:0", "--json")
		url, _ := page(t, cmd)
		if status, body := fetch(t, url+"api/v1/locks", ""); status != 200 || !strings.Contains(body, `"owner":"ann"`) {
			t.Errorf("%d: %s", status, body)
		}
		if status, body := fetch(t, url, ""); status != 200 || !strings.Contains(body, "<title>Locks</title>") {
			t.Errorf("%d: %s", status, body)
		}
		if status, body := fetch(t, url+"metrics", ""); status != 200 || !strings.Contains(body, "dlock_page_locks{") {
			t.Errorf("%d: %s", status, body)
		}
		if status, body := fetch(t, url+"healthz", ""); status != 200 || body != "{\"status\":\"ok\"}\n" {
			t.Errorf("%d: %s", status, body)
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		if code := exitOf(cmd); code != 0 {
			t.Errorf("exit %d", code)
		}
	})
}

// An open page does not keep the command from ending.
func TestUIEndsWithViewers(t *testing.T) {
	t.Parallel()
	cmd := command(files(t), "ui", "--listen", "127.0.0.1:0")
	url, _ := page(t, cmd)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"api/v1/stream", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if line, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil || line != "event: hello\n" {
		t.Fatalf("%v: %q", err, line)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if code := exitOf(cmd); code != 143 {
		t.Errorf("exit %d", code)
	}
}

// The password of a backend is not on the page, also not in its errors and metrics.
func TestUIHidesPasswords(t *testing.T) {
	t.Parallel()
	url, errs := page(t, command("redis://:"+password+"@127.0.0.1:1", "ui", "--listen", "127.0.0.1:0", "--json"))
	for _, path := range []string{"api/v1/health", "api/v1/locks", "metrics"} {
		status, body := fetch(t, url+path, "")
		if status != 200 || !strings.Contains(body, "127.0.0.1:1") || strings.Contains(body, password) {
			t.Errorf("%s: %d: %s", path, status, body)
		}
	}
	if strings.Contains(errs.String(), password) {
		t.Errorf("the password is in %s", errs)
	}
}

func TestUIToken(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-the-test"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// 0.0.0.0 can be reached from other hosts, so it needs one.
	url, errs := page(t, command(files(t), "ui", "--listen", "0.0.0.0:0", "--json", "--token-file", file))
	if !strings.HasPrefix(url, "http://localhost:") {
		t.Errorf("a browser cannot open %s", url)
	}
	if status, _ := fetch(t, url+"api/v1/locks", ""); status != 401 {
		t.Errorf("without a token: %d", status)
	}
	if status, _ := fetch(t, url+"api/v1/locks", token); status != 200 {
		t.Errorf("with it: %d", status)
	}
	if strings.Contains(errs.String(), token) {
		t.Errorf("the token is in %s", errs)
	}
}

// An eviction is written to standard error, as that of dlock evict.
func TestUIEvicts(t *testing.T) {
	t.Parallel()
	backend := "redis://" + testenv.Redis(t).Addr()
	holder := claims(t, backend, "ann", "--on-lost", "warn", "k")
	token := holder.token(t)
	url, errs := page(t, command(backend, "ui", "--listen", "127.0.0.1:0", "--json", "--evict"))
	body, err := json.Marshal(map[string]string{"source": backend, "key": "k", "token": jsonNumber(token), "confirm": "k"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"api/v1/evict", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		t.Errorf("%d", answer.StatusCode)
	}
	testenv.Eventually(t, time.Minute, "the record", func() bool { return strings.Contains(errs.String(), `"by_addr":`) })
	contains(t, errs.String(), `"msg":"eviction by an operator"`, `"result":"evicted"`, `"owner":"ann"`, `"by_addr":"127.0.0.1:`)
	if strings.Contains(errs.String(), `"by":""`) {
		t.Errorf("no operator in %s", errs)
	}
}

func jsonNumber(n int64) string {
	text, _ := json.Marshal(n)
	return string(text)
}

func TestUIRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	backend := files(t)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"other hosts without a token": {[]string{"--listen", "0.0.0.0:0"}, "DLOCK_UI_TOKEN"},
		"all addresses":               {[]string{"--listen", ":0"}, "DLOCK_UI_TOKEN"},
		"no address":                  {[]string{"--listen", "nonsense"}, "--listen"},
		"an address in use":           {[]string{"--listen", taken.Addr().String()}, "in use"},
		"no token file":               {[]string{"--token-file", empty + "x"}, "--token-file"},
		"an empty token file":         {[]string{"--token-file", empty}, "empty"},
		"a backend twice":             {[]string{"--listen", "127.0.0.1:0", "--backend", backend, "--backend", backend}, "twice"},
		"a wrong backend":             {[]string{"--backend", "nonsense"}, "--backend"},
		"a short interval":            {[]string{"--interval", "1ms"}, "interval"},
		"no locks":                    {[]string{"--max-locks", "0"}, "locks"},
		"a host that is none":         {[]string{"--allow-host", "*"}, "host"},
		"an argument":                 {[]string{"extra"}, "extra"},
	} {
		out, errs, code := dlock(t, backend, append([]string{"ui"}, c.args...)...)
		if code != 64 || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d, %q, %q", name, code, out, errs)
		}
	}
	cmd := command(backend, "ui", "--listen", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "DLOCK_UI_TOKEN=short")
	if _, errs, code := finish(t, cmd); code != 64 || strings.Contains(errs, "short\"") || !strings.Contains(errs, "16") {
		t.Errorf("a short token: exit %d, %q", code, errs)
	}
}
