package trial

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

const probeEvery = 50 * time.Millisecond

// watchMachine logs when the machine did not give its time to the lab itself, which is
// the network and the store of the workers, or to a server that nothing disturbed. In the end
// it adds the failovers that servers began themselves.
func (t *trial) watchMachine() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watches sync.WaitGroup
	watches.Go(func() { t.log.WatchScheduling(ctx) })
	if t.top.Direct().Kind == "etcd" {
		watches.Go(func() {
			t.probe(ctx, "", func() error {
				_, err := t.lookout.clients.Etcd.Get(ctx, "probe")
				return err
			})
		})
	} else {
		for i, a := range watch.Addrs(t.top) {
			note := ""
			if t.spec.Topology == schedule.Cluster { // masters first, then their replicas in the same order
				note = oracle.ShardNote(i % schedule.Shards)
			}
			watches.Go(func() { t.probeRedis(ctx, a, note) })
		}
	}
	return func() {
		cancel()
		watches.Wait()
		if t.spec.Mode == schedule.Beyond { // inside the assumptions, servers wait longer than any trial
			t.evidence.Faults = oracle.WithOwn(t.evidence.Faults, t.turns.seen(), mono.Now())
		}
	}
}

// probeRedis probes one Redis server, and notices when it becomes a master or a replica.
func (t *trial) probeRedis(ctx context.Context, addr, note string) {
	p := &pinger{addr: addr}
	defer p.disconnect()
	was, since := "", int64(0) // its role, and when it was asked
	t.probe(ctx, note, func() error {
		asked := mono.Now()
		role, err := p.role()
		if err != nil {
			return err
		}
		switch was {
		case role:
		case "":
			t.turns.know()
		default:
			t.turns.add(oracle.Turn{Addr: addr, Note: note, Master: role == "master", From: since, To: mono.Now()})
		}
		was, since = role, asked
		return nil
	})
}

// probe asks a server now and then. Questions that failed say that it was disturbed,
// and nothing about the machine. note says which server it is.
func (t *trial) probe(ctx context.Context, note string, ask func() error) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := mono.Now()
		if err := ask(); err != nil {
			continue
		}
		if now := mono.Now(); now-asked > int64(event.StallFrom) {
			t.log.Add(event.Event{At: now, Kind: event.Stall, Worker: oracle.Server, Dur: now - asked, Note: note})
		}
	}
}

// turns are those that several probes see.
type turns struct {
	mu      sync.Mutex
	servers int // whose role is known
	all     []oracle.Turn
}

func (t *turns) know() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.servers++
}

func (t *turns) add(one oracle.Turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, one)
}

func (t *turns) known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers
}

func (t *turns) seen() []oracle.Turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// A pinger keeps one connection to one Redis server.
type pinger struct {
	addr string
	conn net.Conn
	in   *bufio.Reader
}

// role asks the server whether it is a master or a slave.
func (p *pinger) role() (string, error) {
	if p.conn == nil {
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			return "", err
		}
		p.conn, p.in = conn, bufio.NewReader(conn)
	}
	_ = p.conn.SetDeadline(time.Now().Add(5 * time.Second))
	role, err := p.ask()
	if err != nil {
		p.disconnect()
	}
	return role, err
}

func (p *pinger) ask() (string, error) {
	if _, err := io.WriteString(p.conn, "INFO replication\r\n"); err != nil {
		return "", err
	}
	header, err := p.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	size, err := strconv.Atoi(strings.Trim(header, "$\r\n"))
	if err != nil {
		return "", fmt.Errorf("the server says %q", header)
	}
	text := make([]byte, size+len("\r\n"))
	if _, err = io.ReadFull(p.in, text); err != nil {
		return "", err
	}
	_, role, _ := strings.Cut(string(text), "role:")
	role, _, _ = strings.Cut(role, "\r\n")
	return role, nil
}

func (p *pinger) disconnect() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}
