package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/faultproxy"
)

// workerEnv in the environment makes this program a worker.
const workerEnv = "DLOCK_BENCH_WORKER"

// ServeIfWorker is the first call of a program that measures: if the program was
// started as a worker, it serves the process that started it, and ends with it.
func ServeIfWorker() {
	if os.Getenv(workerEnv) == "" {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A worker has the clients of one peer, or stands in for a network.
type worker struct {
	mark     string // in its keys, so that peers leave each other alone; short, since held keys are weighed
	clients  []peer.Client
	servers  []int
	held     []peer.Lock
	failures atomic.Int64 // of calls that were repeated
	empty    uint64       // memory before locks were held
	proxies  []*faultproxy.Proxy
	greeted  atomic.Int64
}

type request struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

type response struct {
	Error  string `json:"error,omitempty"`
	Result any    `json:"result,omitempty"`
}

func serve(in io.Reader, out io.Writer) error {
	w := &worker{}
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		result, err := w.do(r)
		answer := response{Result: result}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := encoder.Encode(answer); err != nil {
			return err
		}
	}
}

func (w *worker) do(r request) (any, error) {
	switch r.Op {
	case "open":
		return with(r, w.open)
	case "pace":
		return with(r, w.pace)
	case "contend":
		return with(r, w.contend)
	case "hold":
		return with(r, w.hold)
	case "keep":
		return with(r, w.keep)
	case "grab":
		return with(r, w.grab)
	case "network":
		return with(r, w.network)
	case "requests":
		return with(r, w.requests)
	case "echo":
		return with(r, w.echo)
	}
	return nil, fmt.Errorf("no operation %q", r.Op)
}

func with[A, R any](r request, f func(A) (R, error)) (any, error) {
	var args A
	if err := json.Unmarshal(r.Args, &args); err != nil {
		return nil, err
	}
	return f(args)
}

// An Opening asks for clients of a peer, each with connections of its own.
type Opening struct {
	Peer    string   `json:"peer"`
	Env     peer.Env `json:"env"`
	Clients int      `json:"clients"`
	Servers []int    `json:"servers"` // the processes whose CPU is the server's
}

type nothing struct{}

// open opens the clients and has each of them take a lock once: no round pays for
// connections, scripts and leases.
func (w *worker) open(o Opening) (*nothing, error) {
	p, err := peer.Find(o.Peer)
	if err != nil {
		return nil, err
	}
	w.servers, w.mark = o.Servers, mark(o.Peer)
	w.clients = make([]peer.Client, o.Clients)
	errs := make([]error, o.Clients)
	var wg sync.WaitGroup
	for i := range w.clients {
		wg.Go(func() { w.clients[i], errs[i] = warm(p, &o.Env, fmt.Sprintf("warm:%s:%d", o.Peer, i)) })
	}
	wg.Wait()
	return nil, errors.Join(errs...)
}

// mark is the place of a peer among all.
func mark(name string) string {
	i := slices.IndexFunc(peer.All(), func(p peer.Peer) bool { return p.Info().Name == name })
	return string(rune('a' + i))
}

func warm(p peer.Peer, env *peer.Env, key string) (peer.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := p.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ { // a client that fails while all connect has another chance
		if err = lockOnce(ctx, c, fmt.Sprintf("%s:%d:%d", key, os.Getpid(), try)); err == nil || ctx.Err() != nil {
			return c, err
		}
	}
}

func lockOnce(ctx context.Context, c peer.Client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	l, err := c.Lock(ctx, key)
	if err != nil {
		return err
	}
	return l.Unlock(ctx)
}

// A Network asks for proxies in front of servers.
type Network struct {
	Targets []string      `json:"targets"`
	OneWay  time.Duration `json:"one_way"` // how long everything takes, in each direction
}

func (w *worker) network(n Network) ([]string, error) {
	var addrs []string
	for _, t := range n.Targets {
		p, err := faultproxy.Start(t)
		if err != nil {
			return nil, err
		}
		p.Delay(n.OneWay, n.OneWay)
		if n.OneWay == 0 {
			p.Intercept(func(cmd []string) faultproxy.Action {
				if slices.Contains(greetings, cmd[0]) {
					w.greeted.Add(1)
				}
				return faultproxy.Forward
			})
		}
		w.proxies, addrs = append(w.proxies, p), append(addrs, p.Addr())
	}
	return addrs, nil
}

// greetings are what clients say on a new connection. They may open one at any time.
var greetings = []string{"AUTH", "CLIENT", "HELLO", "SELECT"}

// requests is how many requests have passed, without greetings.
func (w *worker) requests(nothing) (int64, error) {
	sum := -w.greeted.Load()
	for _, p := range w.proxies {
		sum += p.Requests()
	}
	return sum, nil
}

// echo starts an echo server and returns its address.
func (w *worker) echo(nothing) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = peer.ServeEcho(l) }() // as long as the process
	return l.Addr().String(), nil
}
