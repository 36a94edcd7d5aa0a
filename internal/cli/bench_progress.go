package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/cli/bench"
	"github.com/ceyewan/genesis/internal/humanize"
)

// A progress shows how a benchmark goes: a line that changes on a terminal, a line
// for each round elsewhere.
type progress struct {
	*benchmark
	live bool
	done chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	current *bench.Step // nil before the first
	since   time.Time   // when it began
}

func newProgress(c *benchmark) *progress {
	s := &progress{benchmark: c, live: isTerminal(c.stderr), done: make(chan struct{})}
	if c.quiet {
		return s
	}
	rounds := c.plan.Rounds * len(c.plan.Clients) * len(c.plan.Sections)
	c.say("%d rounds of %v on %s, key %s", rounds, c.plan.Duration, c.sessions[0].Where, safe(c.plan.Key))
	if s.live {
		s.wg.Go(s.watch)
	}
	return s
}

func (s *progress) step(step bench.Step) {
	s.mu.Lock()
	s.current, s.since = &step, time.Now()
	s.mu.Unlock()
	if step.Ended != nil && !s.quiet && !s.live {
		s.say("%s", finished(step))
	}
}

func (s *progress) watch() {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-s.done:
			fmt.Fprint(s.stderr, clearLine)
			return
		case <-t.C:
			fmt.Fprint(s.stderr, clearLine+cut(s.line(), width(s.stderr)-1))
		}
	}
}

const gaugeWidth = 20

func (s *progress) line() string {
	s.mu.Lock()
	step, since := s.current, s.since
	s.mu.Unlock()
	if step == nil {
		return "dlock: getting ready"
	}
	inRound := min(time.Since(since), s.plan.Duration)
	if step.Ended != nil {
		inRound = s.plan.Duration
	}
	all := time.Duration(step.Steps) * s.plan.Duration
	past := time.Duration(step.Number-1)*s.plan.Duration + inRound
	full := int(gaugeWidth * past / all)
	return fmt.Sprintf("dlock: [%s%s] %s left, %s: %s acquisitions",
		strings.Repeat("#", full), strings.Repeat(".", gaugeWidth-full), (all - past).Round(time.Second), about(*step), humanize.Count(float64(step.Taken())))
}

// stop returns when nothing more will be shown.
func (s *progress) stop() {
	close(s.done)
	s.wg.Wait()
}
