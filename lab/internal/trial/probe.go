package trial

import (
	"bufio"
	"context"
	"io"
	"net"
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
// the network and the store of the workers, or to a server that nothing disturbed.
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
			p := &pinger{addr: a}
			watches.Go(func() {
				defer p.disconnect()
				t.probe(ctx, note, p.ping)
			})
		}
	}
	return func() {
		cancel()
		watches.Wait()
	}
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

// A pinger keeps one connection to one Redis server.
type pinger struct {
	addr string
	conn net.Conn
	in   *bufio.Reader
}

func (p *pinger) ping() error {
	if p.conn == nil {
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			return err
		}
		p.conn, p.in = conn, bufio.NewReader(conn)
	}
	_ = p.conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := io.WriteString(p.conn, "PING\r\n")
	if err == nil {
		_, err = p.in.ReadString('\n')
	}
	if err != nil {
		p.disconnect()
	}
	return err
}

func (p *pinger) disconnect() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}
