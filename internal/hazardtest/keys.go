package hazardtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/metronome"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// severalKeys are the keys of SeveralKeysHaveNoDeadlock, all in one slot.
var severalKeys = func() (keys []string) {
	for i := range 8 {
		keys = append(keys, "{several}"+strconv.Itoa(i))
	}
	return keys
}()

// SeveralKeysHaveNoDeadlock lets eight processes lock several of eight keys together, in random orders. Some give up while they
// wait. None waits forever, no key has two holders, and nothing is left while the processes live.
func SeveralKeysHaveNoDeadlock(t *testing.T, open Open) {
	t.Parallel()
	const processes = 8
	s := begin(t, open)
	dir, each := t.TempDir(), testenv.UnderStress(300, 10_000)/processes+1
	began := time.Now()
	progress, results := make(chan struct{}, processes*each), make(chan keysResult, processes)
	for i := range processes {
		p := s.startProcess()
		p.send("rounds %d %d %s", each, i, dir)
		go func() { results <- readRounds(p.out, progress) }()
	}
	var sum keysResult
	for ended := 0; ended < processes; {
		select {
		case r := <-results:
			ended++
			sum.locked, sum.gaveUp, sum.wrong = sum.locked+r.locked, sum.gaveUp+r.gaveUp, append(sum.wrong, r.wrong...)
		case <-progress:
		case <-time.After(2 * time.Minute):
			t.Fatalf("no process makes progress: %d of them have ended", ended)
		}
	}
	took := time.Since(began)
	for _, wrong := range sum.wrong {
		t.Error(wrong)
	}
	if want := processes * each; sum.locked+sum.gaveUp != want || sum.locked < want/2 {
		t.Errorf("%d locked and %d gave up, of %d", sum.locked, sum.gaveUp, want)
	}
	testenv.Eventually(t, patience, "nothing is left", func() bool { return len(s.Leftovers(t)) == 0 })
	t.Logf("%d rounds in %v: %d locked their keys, %d gave up; nothing was left", processes*each, took.Round(time.Millisecond), sum.locked, sum.gaveUp)
}

// A keysResult is what a process reports of its rounds.
type keysResult struct {
	locked, gaveUp int
	wrong          []string
}

// readRounds reads a line for each round and one at the end.
func readRounds(out *bufio.Scanner, progress chan<- struct{}) (r keysResult) {
	for out.Scan() {
		n, _ := fmt.Sscanf(out.Text(), "rounds %d %d", &r.locked, &r.gaveUp)
		switch {
		case n == 2:
			return r
		case out.Text() == "round":
			progress <- struct{}{}
		default:
			r.wrong = append(r.wrong, out.Text())
		}
	}
	r.wrong = append(r.wrong, "a process has ended early")
	return r
}

// lockSeveral is the side of a child. A file for each key shows that no other process holds it.
func lockSeveral(c *dlock.Client, rounds int, seed uint64, dir string) {
	random := rand.New(rand.NewPCG(seed, 1))
	locked, gaveUp, late := 0, 0, 0
	beats, end := metronome.New()
	defer end()
	for range rounds {
		keys := slices.Clone(severalKeys)
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		keys = keys[:2+random.IntN(len(keys)-1)]
		wait := time.Hour
		if random.IntN(8) == 0 {
			wait = time.Duration(random.IntN(20)) * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		// Longer than the test: what is left stays.
		all, err := c.AcquireAll(ctx, keys, dlock.WithTTL(time.Hour))
		switch {
		case err == nil:
			locked++
			enter(dir, keys)
			began := time.Now()
			err = all.Unlock(context.Background())
			isLate := errors.Is(err, dlock.ErrUnknownOutcome) && beats.Stalled(began, giveUpAfter)
			if isLate { // nothing is left at the end
				late++
			}
			if err != nil && (!isLate || late > maxVoid) {
				fmt.Println("unlock:", err)
			}
		case errors.Is(err, context.DeadlineExceeded) && wait < time.Hour:
			gaveUp++
		default:
			fmt.Println("acquire:", err)
		}
		cancel()
		fmt.Println("round")
	}
	fmt.Println("rounds", locked, gaveUp)
}

// enter creates a file for each key, which must not exist, and removes them.
func enter(dir string, keys []string) {
	for _, key := range keys {
		f, err := os.OpenFile(filepath.Join(dir, key), os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			fmt.Println("another process holds it:", err)
			continue
		}
		_ = f.Close()
	}
	for _, key := range keys {
		_ = os.Remove(filepath.Join(dir, key))
	}
}
