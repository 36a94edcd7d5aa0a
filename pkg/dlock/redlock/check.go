package redlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Check examines every node for settings that make locks unsafe, and whether the nodes are
// independent of each other. It needs permission for INFO, PING and TIME only.
func (d *redDriver) Check(ctx context.Context) ([]driver.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	looks := make(chan look, len(d.nodes))
	for _, n := range d.nodes {
		d.work.Go(func() { looks <- n.look(ctx) })
	}
	all := make([]look, len(d.nodes))
	for range d.nodes {
		select {
		case l := <-looks:
			all[l.node.at] = l
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	var t tally
	reached := 0
	for _, l := range all {
		if l.err != nil {
			t.add(l.err)
		} else {
			reached++
		}
	}
	if reached == 0 {
		if by, ok := ctx.Deadline(); ok && !time.Now().Before(by) { // which also ends each call
			return nil, context.DeadlineExceeded
		}
		return nil, t.noQuorum(len(d.nodes), d.majority, false)
	}
	return d.judgeAll(all, reached), nil
}

// A look is what one node reports about itself.
type look struct {
	node    *node
	err     error
	info    redisnode.Info
	trip    driver.Finding
	offset  time.Duration // of its clock from the local one
	between time.Duration // how exactly that is known
}

func (n *node) look(ctx context.Context) (l look) {
	defer recovered(&l.err)
	limit := n.driver.settings.longest()
	l = look{node: n}
	if l.info, l.err = redisnode.Ask(ctx, n.client, limit); l.err != nil {
		l.err = redisnode.Classify(l.err)
		return l
	}
	if l.trip, l.err = redisnode.RoundTrip(ctx, n.client, limit); l.err == nil {
		l.offset, l.between, l.err = redisnode.Clock(ctx, n.client, limit)
	}
	return l
}

func (d *redDriver) judgeAll(all []look, reached int) []driver.Finding {
	findings := []driver.Finding{d.reachable(all, reached), clocks(all), independence(all)}
	for _, l := range all {
		if l.err != nil {
			continue
		}
		for _, f := range []driver.Finding{
			redisnode.Version(l.info), redisnode.Eviction(l.info), nodePersistence(l.info), role(l.info), l.trip,
		} {
			f.Detail = l.node.addr + ": " + f.Detail
			findings = append(findings, f)
		}
	}
	return findings
}

func (d *redDriver) reachable(all []look, reached int) driver.Finding {
	f := driver.Finding{Name: "nodes", Detail: fmt.Sprintf("%d of %d answer", reached, len(all))}
	var silent []string
	for _, l := range all {
		if l.err != nil {
			silent = append(silent, l.node.addr)
		}
	}
	switch {
	case reached < d.majority:
		f.Level, f.Fix = driver.Unsafe, fmt.Sprintf("bring back %s: without a majority of %d no lock is granted or kept", strings.Join(silent, ", "), d.majority)
	case reached < len(all):
		f.Level, f.Fix = driver.Warning, fmt.Sprintf("bring back %s: locks live on what is left to spare", strings.Join(silent, ", "))
	case len(all) < 5:
		f.Fix = "five servers survive the loss of two"
	}
	return f
}

// maxClockOffset is how far clocks may differ before tokens depend on the counters alone for longer
// than a moment.
const maxClockOffset = time.Second

func clocks(all []look) driver.Finding {
	var low, high, error time.Duration
	first := true
	for _, l := range all {
		if l.err != nil {
			continue
		}
		if first {
			low, high, first = l.offset, l.offset, false
		}
		low, high, error = min(low, l.offset), max(high, l.offset), max(error, l.between)
	}
	apart := high - low
	f := driver.Finding{Name: "clocks", Detail: fmt.Sprintf("%v apart, give or take %v", apart.Round(time.Millisecond), error.Round(time.Millisecond))}
	if apart > maxClockOffset+error {
		f.Level, f.Fix = driver.Warning, "set the clocks by NTP, slewing and never stepping: a node that comes back without its data takes its tokens from its clock"
	}
	return f
}

// independence finds nodes that fail together: the same server twice, or a replica of another node.
func independence(all []look) driver.Finding {
	f := driver.Finding{Name: "independence", Detail: "every node is a server of its own"}
	seen := map[string]string{}
	for _, l := range all {
		if l.err != nil {
			continue
		}
		id := l.info["run_id"]
		if other, twice := seen[id]; twice && id != "" {
			f.Level, f.Detail = driver.Unsafe, fmt.Sprintf("%s and %s are the same server", other, l.node.addr)
			f.Fix = "name every server once: a server that counts twice makes a majority that is none"
			return f
		}
		seen[id] = l.node.addr
		if l.info["role"] != "master" || l.info["cluster_enabled"] == "1" {
			f.Level, f.Detail = driver.Unsafe, l.node.addr+" is a replica or part of a cluster"
			f.Fix = "use servers that know nothing of each other"
			return f
		}
	}
	return f
}

func nodePersistence(info redisnode.Info) driver.Finding {
	f := redisnode.Persistence(info)
	if f.Level != driver.OK {
		f.Fix = "a node that restarts forgets its locks, and the next majority may be another: set appendonly yes and appendfsync always, or keep it down for longer than the longest TTL"
	}
	return f
}

func role(info redisnode.Info) driver.Finding {
	f := driver.Finding{Name: "replication", Detail: info["role"] + " with " + info["connected_slaves"] + " replicas"}
	switch {
	case info["role"] != "master":
		f.Level, f.Fix = driver.Unsafe, "a replica refuses to write: use servers without a master"
	case info["connected_slaves"] != "0":
		f.Level, f.Fix = driver.Warning, "never fail over to a replica: it may lack locks that its master had"
	}
	return f
}

// warnOnce checks the settings in the background when the first lock is taken, because a wrong
// setting loses locks without any other sign.
func (d *redDriver) warnOnce() {
	d.warned.Do(func() {
		d.work.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, 2*time.Second)
			defer cancel()
			findings, err := d.Check(ctx)
			for _, f := range findings {
				if err == nil && f.Level == driver.Unsafe && f.Name != "nodes" {
					d.log.Warn("redis is not safe for locks", "finding", f.Name, "detail", f.Detail, "fix", f.Fix)
				}
			}
		})
	})
}
