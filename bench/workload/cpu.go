package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ceyewan/genesis/internal/measure"
)

// cpuOf is what other processes have used, by the account of Linux's scheduler, which
// is finer than the ticks of stat; 0 where there is none.
func cpuOf(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			var ns int64
			if _, err := fmt.Sscan(string(text), &ns); err == nil {
				sum += time.Duration(ns)
			}
		}
	}
	return sum
}

// A meter reads the CPU of this process and of the servers, between start and read.
type meter struct {
	servers     []int
	own, theirs time.Duration
}

func startMeter(servers []int) meter { return meter{servers, measure.CPU(), cpuOf(servers)} }

func (m *meter) read() (own, servers float64) {
	return (measure.CPU() - m.own).Seconds(), (cpuOf(m.servers) - m.theirs).Seconds()
}
