package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
)

// What a watch writes where there is no terminal.

// A printout is the table, again whenever it has changed.
type printout struct {
	*app
	last   string
	failed bool
}

func (*printout) rows() int { return maxWatched }
func (*printout) close()    {}

func (p *printout) show(s snapshot) error {
	if s.err != nil {
		if !p.failed {
			p.say("%v", s.err)
		}
		p.failed = true
		return nil
	}
	now := strings.Join(states(s.locks), "\n") + "\n."
	p.failed = false
	if now == p.last {
		return nil
	}
	first := p.last == ""
	p.last = now
	if !first {
		if err := written(io.WriteString(p.stdout, "\n")); err != nil {
			return err
		}
	}
	return p.lockTable().write(p.stdout, rows(s.locks))
}

// states is what is reported when it changes: times are not.
func states(locks []lock) []string {
	all := make([]string, len(locks))
	for i := range locks {
		all[i] = locks[i].state()
	}
	return all
}

func (k *lock) state() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %s %d %q", k.Key, k.Mode, len(k.queue), k.Error)
	for i := range k.Holders {
		fmt.Fprintf(&b, " %d %q", k.Holders[i].Token, lockreader.Describe(k.Holders[i].Info))
	}
	return b.String()
}

// changes are lines of JSON, one for each lock that has changed.
type changes struct {
	out, errs io.Writer
	last      map[string]string // key -> state
	failed    bool
}

// A change is a lock and what became of it.
type change struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // held or free
	lock
}

func (*changes) rows() int { return maxWatched }
func (*changes) close()    {}

func (c *changes) show(s snapshot) error {
	if s.err != nil {
		return c.fail(s.err)
	}
	c.failed = false
	now := make(map[string]string, len(s.locks))
	for i := range s.locks {
		k := &s.locks[i]
		now[k.Key] = k.state()
		if c.last[k.Key] == now[k.Key] {
			continue
		}
		if err := writeJSON(c.out, change{s.at, "held", *k}); err != nil {
			return err
		}
	}
	for key := range c.last {
		if _, still := now[key]; still {
			continue
		}
		if err := writeJSON(c.out, change{s.at, "free", lock{Key: key, Holders: []claim{}}}); err != nil {
			return err
		}
	}
	c.last = now
	return nil
}

// fail reports once that the backend fails.
func (c *changes) fail(err error) error {
	if c.failed {
		return nil
	}
	c.failed = true
	return writeJSON(c.errs, map[string]any{"time": time.Now(), "error": err.Error()})
}
