package drivertest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// mutualExclusion: contenders with their own drivers enter one section, never two at a time. Some
// cancel while they wait.
func mutualExclusion(s *suite) {
	const contenders = 6
	rounds := min(15, max(5, s.Grants/10)) // fewer if the harness wants the suite to be brief
	var inside, overlaps, entered atomic.Int32
	var last atomic.Int64
	var wg sync.WaitGroup
	for i := range contenders {
		d := s.open()
		wg.Go(func() {
			for round := range rounds {
				r := s.ref("k")
				var st driver.State
				_, err := s.ask(func() (err error) { st, err = d.Acquire(s.ctx, waiting(r)); return err })
				if err != nil {
					s.Errorf("Acquire: %v", err)
					return
				}
				if st.Phase == driver.Queued && (round+i)%5 == 0 {
					s.cancel(d, r)
					continue
				}
				for pause := time.Millisecond; st.Phase == driver.Queued; pause = min(2*pause, 8*time.Millisecond) {
					elapse(pause)
					var states []driver.State
					_, err := s.ask(func() (err error) { states, err = d.Renew(s.ctx, []driver.Ref{r}); return err })
					if err != nil {
						s.Errorf("Renew: %v", err)
						return
					}
					st = states[0]
				}
				if st.Phase != driver.Held {
					s.Errorf("a waiting claim is %v", st.Phase)
					return
				}
				if inside.Add(1) != 1 {
					overlaps.Add(1)
				}
				if before := last.Swap(st.Token); s.Caps.Fencing && before >= st.Token {
					s.Errorf("token %d entered after %d", st.Token, before)
				}
				entered.Add(1)
				elapse(time.Millisecond)
				inside.Add(-1)
				s.cancel(d, r)
			}
		})
	}
	wg.Wait()
	if n := overlaps.Load(); n > 0 {
		s.Errorf("%d overlaps in %d entries", n, entered.Load())
	}
	if entered.Load() == 0 {
		s.Error("no worker entered")
	}
	s.submit(s.open(), request(s.ref("k")), driver.Held)
}

// cancel releases the claim in whatever phase it is; it may be called from any goroutine.
func (s *suite) cancel(d driver.Driver, r driver.Ref) {
	var st driver.State
	again, err := s.ask(func() (err error) { st, err = d.Release(s.ctx, r); return err })
	isRepeated := again && st.Phase == driver.Gone
	if err != nil || (st.Phase != driver.Held && st.Phase != driver.Queued && !isRepeated) {
		s.Errorf("Release found %v, %v", st.Phase, err)
	}
}
