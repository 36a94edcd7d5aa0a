package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// What doctor finds out by doing it, on every backend alike.

// pairs is how often doctor takes and releases a lock.
const pairs = 7

// A probe takes locks on a key that is not used.
type probe struct {
	*diagnosis
	key     string
	took    []time.Duration
	refused []dlock.Finding
	leased  bool
}

// try is an error only if the question makes no sense.
func (d *diagnosis) try(ctx context.Context) ([]dlock.Finding, error) {
	p := &probe{diagnosis: d}
	for n := range 1 + pairs {
		p.key = d.diagnosisKey()
		err := p.pair(ctx)
		p.forget(ctx)
		if isUsage(err) || ((n == 0 || p.competes()) && errors.Is(err, dlock.ErrLockHeldByOther)) {
			return nil, fmt.Errorf("trying a lock: %w", err)
		}
		if n == 0 && (err == nil || tooSlow(err)) {
			p.took, p.refused = nil, nil // connections are made and scripts loaded only once
		}
		if len(p.refused) > 0 {
			break
		}
	}
	p.look(ctx)
	return append(p.refused, p.findings()...), nil
}

// competes reports whether a key that is held is so by another process, which may use it as well. With leases, a
// release that was not answered in time leaves it held.
func (p *probe) competes() bool {
	return !p.leased && (p.diagnosis.key != "" || p.OnlyKey != "")
}

// diagnosisKey is another one each time: a lock that could not be released in time is
// not in the way of the next.
func (d *diagnosis) diagnosisKey() string {
	switch {
	case d.key != "":
		return d.key
	case d.OnlyKey != "":
		return d.OnlyKey
	}
	return "dlock-doctor-" + rand.Text()[:12]
}

// forget removes what the backend keeps of a key that was made up for this.
func (p *probe) forget(ctx context.Context) {
	if p.diagnosis.key != "" || p.Forget == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lockreader.Timeout)
	defer cancel()
	_ = p.Forget(ctx, p.Config.Prefix+p.key) // little stays, and nothing waits for it
}

// pair takes the lock, renews and releases it, and measures all but the renewal.
func (p *probe) pair(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockreader.Timeout)
	defer cancel()
	start := time.Now()
	g, err := p.client.TryAcquire(ctx, p.key, dlock.WithTTL(p.ttl), dlock.WithoutRenewal())
	if err != nil {
		return p.failed("lock", err)
	}
	took := time.Since(start)
	p.leased = g.Remaining() <= p.ttl
	if err := p.renew(ctx, g); err != nil {
		err = p.failed("renew", err)
		return errors.Join(err, g.Unlock(context.WithoutCancel(ctx)))
	}
	start = time.Now()
	if err := g.Unlock(ctx); err != nil {
		return p.failed("release", err)
	}
	p.took = append(p.took, took+time.Since(start))
	return nil
}

func (p *probe) renew(ctx context.Context, g *dlock.Guard) error {
	if !p.leased {
		return nil
	}
	return g.Extend(ctx, p.ttl)
}

// look finds out whether an operator could look at locks.
func (p *probe) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lockreader.Timeout)
	defer cancel()
	admin, err := p.client.Admin()
	if err != nil {
		return // a backend that cannot show its locks permits nothing of that
	}
	if _, _, err := admin.ListPage(ctx, p.key, "", 1); err != nil {
		_ = p.failed("list", err)
	}
	if _, err := admin.Inspect(ctx, p.key); err != nil {
		_ = p.failed("inspect", err)
	}
}

// failed keeps what could not be done. Locks need the first three; operators the
// others.
func (p *probe) failed(what string, err error) error {
	f := dlock.Finding{Level: dlock.LevelUnsafe, Name: "permissions", Detail: "cannot " + what + ": " + err.Error(), Fix: "see docs/backends for what this backend must permit"}
	if what == "list" || what == "inspect" {
		f.Level, f.Fix = dlock.LevelWarning, "permit it to those who look after locks; locks themselves do not need it"
	}
	if errors.Is(err, dlock.ErrNotReady) {
		f.Name, f.Fix = "ready", "repair what the error names: the backend answers, and the permissions are not the cause"
	}
	if tooSlow(err) {
		f.Name, f.Detail = "latency", fmt.Sprintf("with a TTL of %v: could not %s in time: %v", p.ttl, what, err)
		f.Fix = "use a longer TTL, or a backend that is nearer"
	}
	p.refused = append(p.refused, f)
	return err
}

// tooSlow is for what might have succeeded with more time. A key that is held may be
// so by a try before, whose release was not answered.
func tooSlow(err error) bool {
	for _, kind := range []error{dlock.ErrOwnershipLost, dlock.ErrUnknownOutcome, dlock.ErrUnavailable, dlock.ErrLockHeldByOther, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (p *probe) findings() []dlock.Finding {
	var all []dlock.Finding
	if len(p.took) == pairs {
		all = append(all, p.latency())
	}
	if len(p.refused) == 0 {
		what := "can lock, renew, release, list and inspect"
		if !p.leased {
			what = "can lock, release, list and inspect"
		}
		all = append(all, dlock.Finding{Level: dlock.LevelOK, Name: "permissions", Detail: what})
	}
	return all
}

// latency compares what a lock takes with the TTL. A renewal is sent when a third of
// the TTL has passed, and must be answered before the rest has.
func (p *probe) latency() dlock.Finding {
	slices.Sort(p.took)
	median, slowest := stats.Percentile(p.took, 50), stats.Percentile(p.took, 100)
	f := dlock.Finding{Level: dlock.LevelOK, Name: "latency", Detail: fmt.Sprintf("lock and release take %v, at most %v", precise(median), precise(slowest))}
	if !p.leased {
		f.Detail += "; there is no lease to renew"
		return f
	}
	f.Detail += fmt.Sprintf(", compared with a TTL of %v", p.ttl)
	switch {
	case median > p.ttl/3:
		f.Level, f.Fix = dlock.LevelUnsafe, fmt.Sprintf("use a TTL of at least %v, or a backend that is nearer: locks would be lost while they are held", longer(slowest))
	case slowest > p.ttl/10:
		f.Level, f.Fix = dlock.LevelWarning, fmt.Sprintf("use a TTL of at least %v: a pause could lose a lock", longer(slowest))
	}
	return f
}

func precise(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// longer is ten times a delay, in whole seconds.
func longer(d time.Duration) time.Duration {
	return (10*d + time.Second - 1).Truncate(time.Second)
}
