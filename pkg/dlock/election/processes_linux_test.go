package election_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/internal/testenv"
)

// Five processes stand for election, each with a network of its own. The leader is killed, stopped, cut off, and asked to
// resign. No two lead at a time, terms grow, and there is a successor soon.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"redis", "etcd", "redlock"} {
		t.Run(backend, func(t *testing.T) {
			if testenv.UnderStress(true, false) { // strict limits need the machine
				t.Parallel()
			}
			disturb(t, newFleet(t, backend))
		})
	}
}

func disturb(t *testing.T, f *fleet) {
	t.Helper()
	for i := range 5 {
		f.start(i)
	}
	leader := f.nextLeader(0)
	kinds := []struct {
		name    string
		disturb func(*process) (undo func())
	}{
		{"killed", f.kill}, {"stopped", f.stop}, {"cut off", f.cut}, {"disconnected", f.disconnect},
	}
	took := map[string][]float64{}
	trials := testenv.UnderStress(1, 10)
	for _, kind := range kinds {
		for len(took[kind.name]) < trials { // one that was late because the machine stalled is repeated
			<-time.After(100 * time.Millisecond) // it renews, and the others wait
			leader = f.latest(leader)
			at := monotonic()
			began := time.Now()
			undo := kind.disturb(leader.by)
			leader = f.nextLeader(at)
			if limit := limitOf(kind.name); leader.at-at <= limit || !testenv.Stalled(t, began, limit) {
				took[kind.name] = append(took[kind.name], (leader.at - at).Seconds())
			}
			<-time.After(leaseTTL / 4)
			undo()
		}
	}
	for range testenv.UnderStress(5, 300) {
		<-time.After(30 * time.Millisecond) // a shorter term is followed by a pause
		leader = f.latest(leader)
		began := time.Now()
		_, err := io.WriteString(leader.by.in, "\n")
		check(t, err)
		next := f.nextLeader(leader.at)
		limit := limitOf("resigned")
		if f.resigned > leader.at && next.at > f.resigned && (next.at-f.resigned <= limit || !testenv.Stalled(t, began, limit)) {
			took["resigned"] = append(took["resigned"], (next.at - f.resigned).Seconds())
		}
		leader = next
	}
	f.report(took)
	for _, wrong := range judge(f.terms()) {
		t.Error(wrong)
	}
}

// limitOf returns how long a successor may take.
func limitOf(kind string) time.Duration {
	if kind == "resigned" {
		return testenv.UnderStress(20*time.Second, 50*time.Millisecond)
	}
	return leaseTTL + testenv.UnderStress(20*time.Second, time.Second)
}

// report checks how long a successor took.
func (f *fleet) report(took map[string][]float64) {
	f.t.Helper()
	for name, all := range took {
		slices.Sort(all)
		limit := limitOf(name)
		last, p50, p99 := all[len(all)-1], stats.Percentile(all, 50), stats.Percentile(all, 99)
		if worst := (map[bool]float64{true: p99, false: last})[name == "resigned"]; worst > limit.Seconds() {
			f.t.Errorf("%s: the next leader came after %.3f s, more than %v", name, worst, limit)
		}
		f.t.Logf("%s: %s: %d times; next leader after p50 %.1f ms, p99 %.1f ms, longest %.1f ms", f.backend, name, len(all), p50*1e3, p99*1e3, last*1e3)
	}
}

// The judge finds a leader that does not stop when its context ends.
func TestStubbornLeader(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "redis")
	f.start(0, "stubborn")
	leader := f.nextLeader(0)
	f.start(1)
	undo := f.cut(leader.by)
	defer undo()
	f.nextLeader(leader.at)
	var wrong []string
	testenv.Eventually(t, time.Minute, "the judge finds two leaders", func() bool {
		wrong = judge(f.terms())
		return len(wrong) > 1
	})
	if len(wrong) != 2 || !strings.Contains(wrong[0], "was valid") || !strings.Contains(wrong[1], "had not ended") {
		t.Errorf("the judge says %q", wrong)
	}
}

// judge returns what is wrong with the terms of all processes.
func judge(terms []term) (wrong []string) {
	slices.SortFunc(terms, func(a, b term) int { return cmp.Compare(a.From, b.From) })
	for i, next := range terms {
		for _, t := range terms[:i] {
			if t.Number >= next.Number {
				wrong = append(wrong, fmt.Sprintf("term %d began after term %d", next.Number, t.Number))
			}
			if t.Valid >= next.From {
				wrong = append(wrong, fmt.Sprintf("term %d was valid %v after term %d had begun", t.Number, t.Valid-next.From, next.Number))
			}
			if t.Context >= next.From {
				wrong = append(wrong, fmt.Sprintf("the context of term %d had not ended %v after term %d had begun", t.Number, t.Context-next.From, next.Number))
			}
		}
	}
	return wrong
}

// A fleet is candidates in processes of their own, each behind its own proxies.
type fleet struct {
	t        *testing.T
	backend  string
	dir      string
	servers  []string
	proxies  map[int][]*faultproxy.Proxy // by place in the fleet
	events   chan event
	resigned time.Duration // when the last leader was about to resign
}

// A process is one of them.
type process struct {
	*servers.Child
	place int
	in    io.Writer
}

// An event is what a process prints.
type event struct {
	by     *process
	kind   string
	number int64         // of the term
	at     time.Duration // by monotonic
}

func newFleet(t *testing.T, backend string) *fleet {
	t.Helper()
	f := &fleet{t: t, backend: backend, dir: t.TempDir(), proxies: map[int][]*faultproxy.Proxy{}, events: make(chan event, 10_000)}
	switch backend {
	case "etcd":
		f.servers = []string{testenv.Etcd(t).Addr()}
	case "redlock":
		f.servers = []string{testenv.Redis(t).Addr(), testenv.Redis(t).Addr(), testenv.Redis(t).Addr()}
	default:
		f.servers = []string{testenv.Redis(t).Addr()}
	}
	return f
}

// start starts the process of a place.
func (f *fleet) start(place int, more ...string) {
	f.t.Helper()
	if f.proxies[place] == nil {
		for _, addr := range f.servers {
			f.proxies[place] = append(f.proxies[place], testenv.Proxy(f.t, addr))
		}
	}
	var addrs []string
	for _, p := range f.proxies[place] {
		addrs = append(addrs, p.Addr())
	}
	files, err := os.ReadDir(f.dir)
	check(f.t, err)
	file := filepath.Join(f.dir, fmt.Sprintf("%d.terms", len(files)))
	check(f.t, os.WriteFile(file, nil, 0o600))
	cmd := exec.Command(os.Args[0], append([]string{f.backend, strings.Join(addrs, ","), file}, more...)...)
	cmd.Env = append(os.Environ(), asCandidate+"=1")
	in, err := cmd.StdinPipe()
	check(f.t, err)
	out, err := cmd.StdoutPipe()
	check(f.t, err)
	p := &process{testenv.Child(f.t, cmd), place, in}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			e := event{by: p}
			if n, _ := fmt.Sscan(lines.Text(), &e.kind, &e.number, &e.at); n == 3 {
				f.events <- e
			}
		}
	}()
}

// nextLeader waits for a process that was elected after that time. It waits on if the machine has hardly run the processes.
func (f *fleet) nextLeader(after time.Duration) event {
	f.t.Helper()
	began := time.Now()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case e := <-f.events:
			if e.kind == "resigns" {
				f.resigned = time.Duration(e.number)
			} else if e.at > after {
				return e
			}
		case <-limit:
			if took := time.Since(began); !testenv.Stalled(f.t, began, took-time.Millisecond) {
				f.t.Fatalf("%s: no leader for %v", f.backend, took)
			}
			limit = time.After(time.Minute)
		}
	}
}

// latest returns the leader, which may have changed on a busy machine.
func (f *fleet) latest(leader event) event {
	for {
		select {
		case e := <-f.events:
			if e.kind == "leads" && e.at > leader.at {
				leader = e
			}
		default:
			return leader
		}
	}
}

// kill ends a process, and starts another in its place afterwards.
func (f *fleet) kill(p *process) (undo func()) {
	p.Kill()
	return func() { f.start(p.place) }
}

func (f *fleet) stop(p *process) (undo func()) {
	check(f.t, syscall.Kill(p.Pid(), syscall.SIGSTOP))
	return func() { check(f.t, syscall.Kill(p.Pid(), syscall.SIGCONT)) }
}

// cut lets nothing pass between a process and the servers, not even the end of a connection.
func (f *fleet) cut(p *process) (undo func()) {
	for _, proxy := range f.proxies[p.place] {
		proxy.BlackHole(true)
	}
	return func() {
		for _, proxy := range f.proxies[p.place] {
			proxy.BlackHole(false)
		}
	}
}

// disconnect closes the connections of a process, and refuses new ones.
func (f *fleet) disconnect(p *process) (undo func()) {
	for _, proxy := range f.proxies[p.place] {
		proxy.Refuse(true)
		proxy.Cut()
	}
	return func() {
		for _, proxy := range f.proxies[p.place] {
			proxy.Refuse(false)
		}
	}
}

// terms returns the terms of all processes.
func (f *fleet) terms() (terms []term) {
	f.t.Helper()
	files, err := os.ReadDir(f.dir)
	check(f.t, err)
	for _, file := range files {
		terms = append(terms, readTerms(f.t, filepath.Join(f.dir, file.Name()))...)
	}
	return terms
}
