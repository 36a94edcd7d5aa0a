package dashboard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A poller reads the locks of one source while it has viewers. However many there are, it reads
// once per interval.
type poller struct {
	handler *Handler
	name    string
	client  *dlock.Client
	admin   *dlock.Admin
	reader  *lockreader.Reader
	asker   *asker
	tally   *tally
	own     *ownReader

	mu        sync.Mutex
	viewers   int
	running   bool
	fresh     bool               // a reading has ended since it runs
	pause     context.CancelFunc // ends the reading when the last viewer leaves
	due       time.Time          // no reading begins earlier
	latest    *snapshot
	newUntil  time.Time // until when the latest snapshot cannot be replaced
	history   *history
	findings  *[]dlock.Finding // nil before the first check has ended
	checkedAt time.Time        // when the last check began
}

const (
	checkEvery = time.Minute
	// share is the part of the time that is spent on reading at most: a source with many locks is
	// read less often. No pause is longer than maxInterval.
	share = 5
)

// join adds a viewer, and starts to read if it is the first.
func (p *poller) join() (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.viewers++
	if !p.running {
		p.running, p.fresh = true, false
		p.handler.work.Go(p.run)
	}
	return sync.OnceFunc(p.leave)
}

func (p *poller) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.viewers--
	if p.viewers == 0 && p.pause != nil {
		p.pause()
	}
}

// run reads until there is no viewer.
func (p *poller) run() {
	for {
		ctx, wait, ok := p.begin()
		if !ok {
			return
		}
		select {
		case <-time.After(wait):
			p.read(ctx)
		case <-ctx.Done():
		}
	}
}

// begin returns how long to wait for the next reading, and a context that ends when the last
// viewer leaves.
func (p *poller) begin() (ctx context.Context, wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause != nil {
		p.pause()
		p.pause = nil
	}
	if p.viewers == 0 || p.handler.closing.Err() != nil {
		p.running = false
		return nil, 0, false
	}
	ctx, p.pause = context.WithCancel(p.handler.closing)
	return ctx, time.Until(p.due), true
}

// read takes one snapshot and, now and then, begins to check the settings of the backend.
func (p *poller) read(ctx context.Context) {
	began := time.Now()
	next := p.take(ctx)
	next.tried = time.Now()
	if ctx.Err() != nil {
		p.postpone(began)
		return // the last viewer has left, so what failed says nothing
	}
	p.tally.reading(next.tried.Sub(began), next.err != "")
	p.keep(next)
	p.handler.publish() // which takes its time with many waiters
	p.keepUntil(p.postpone(began))
	if p.checkDue() {
		p.handler.work.Go(p.check)
	}
}

// check looks at the settings of the backend. It ends only with the Handler: if it ended with the last
// viewer, each of many short requests would begin another one.
func (p *poller) check() {
	p.tally.checks.Add(1)
	findings := lockreader.Settings(p.handler.closing, p.client)
	if p.handler.closing.Err() == nil {
		p.keepFindings(findings)
		p.handler.publish()
	}
}

// take reads the locks. If that fails, the snapshot has the rows of the last one.
func (p *poller) take(ctx context.Context) *snapshot {
	last := p.current()
	began := time.Now()
	s := &snapshot{seq: last.seq + 1, rows: last.rows, more: last.more, began: last.began, at: last.at, answer: last.answer, round: last.round}
	keys, more, err := p.keys(ctx, s)
	if err != nil {
		s.err = err.Error()
		return s
	}
	entries, err := p.reader.Read(ctx, keys)
	if err != nil {
		s.err = err.Error()
		return s
	}
	s.rows, s.more = make(map[string]*row, len(entries)), more
	for i := range entries {
		e := &entries[i]
		r := newRow(e, p.client.Backend())
		if countsWaits(p.client.Backend()) {
			r.datePromotions(last.rows[e.Key], e.At.UnixMilli(), last.readAt(), gapAfter(p.handler.settings.interval))
		}
		s.rows[e.Key] = r.steady(last.rows[e.Key])
	}
	s.at, s.round, s.began = time.Now(), time.Since(began), began.Sub(p.handler.started)
	for _, r := range s.rows {
		r.see(max(1, s.at.Sub(p.handler.started)))
	}
	findParts(s.rows, last.rows, s.at)
	return s
}

// keys lists up to the limit. It measures how long the first answer takes.
func (p *poller) keys(ctx context.Context, s *snapshot) (keys []string, more bool, err error) {
	most := p.handler.settings.maxLocks
	began := time.Now()
	s.answer = 0
	next, err := p.reader.Pages(ctx, "", "", most+1, func(page []string) error {
		if s.answer == 0 {
			s.answer = max(time.Since(began), time.Microsecond)
		}
		keys = append(keys, page...)
		return nil
	})
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return keys[:min(most, len(keys))], next != "" || len(keys) > most, err
}

// keep publishes a snapshot and adds it to the history.
func (p *poller) keep(next *snapshot) {
	p.mu.Lock()
	last := p.latest
	p.latest, p.fresh = next, true
	if next.err == "" {
		p.history.observe(last, next, gapAfter(p.handler.settings.interval))
	}
	p.mu.Unlock()
	switch {
	case next.err != "" && last.err == "":
		p.handler.settings.log.Warn("source cannot be read", clog.String("source", p.name), clog.String("error", next.err))
	case next.err == "" && last.err != "":
		p.handler.settings.log.Info("source can be read again", clog.String("source", p.name))
	}
}

// postpone sets and returns when the next reading may begin.
func (p *poller) postpone(began time.Time) time.Time {
	took := time.Since(began)
	pause := max(p.handler.settings.interval-took, (share-1)*took)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Now().Add(min(pause, maxInterval))
	return p.due
}

// keepUntil sets until when the latest snapshot is as new as it can be.
func (p *poller) keepUntil(due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newUntil = due
}

// checkDue reports whether to check the settings now, once per checkEvery.
func (p *poller) checkDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.checkedAt.IsZero() || time.Since(p.checkedAt) >= checkEvery
	if due {
		p.checkedAt = time.Now()
	}
	return due
}

func (p *poller) keepFindings(findings []dlock.Finding) {
	if findings == nil {
		findings = []dlock.Finding{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.findings = &findings
}

func (p *poller) current() *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}

func (p *poller) currentFindings() *[]dlock.Finding {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.findings
}

func (p *poller) past(key string) []holding {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history.of(key)
}

// hasRead reports whether the latest snapshot is as new as it can be: the reader runs, or is not due
// yet. A request does not wait for a reading that takes long while there is an older one.
func (p *poller) hasRead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.latest.tried.IsZero() && (p.fresh || time.Now().Before(p.newUntil))
}

// hasChecked reports whether the settings are known, too, or cannot be.
func (p *poller) hasChecked() bool {
	return p.hasRead() && (p.currentFindings() != nil || p.current().err != "")
}
