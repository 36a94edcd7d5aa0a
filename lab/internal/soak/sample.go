package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A Plan is how a run is laid out. It is the first line of the file of samples.
type Plan struct {
	Backends []string      `json:"backends"`
	Duration time.Duration `json:"duration"`
	Seed     uint64        `json:"seed"`
	Begin    time.Time     `json:"begin"`
}

// Half is what each of the two halves of a run takes.
func (p Plan) Half() time.Duration { return p.Duration / 2 }

// Names of series.
const (
	heap        = "heap bytes"
	rss         = "resident bytes"
	goroutines  = "goroutines"
	descriptors = "descriptors"
	connections = "connections at the server"
	allKeys     = "keys"
	lockKeys    = "keys of locks"
	queueKeys   = "keys of queues"
	tombstones  = "tombstones"
	counterKeys = "token counters"
	fenceKeys   = "fence keys"
	otherKeys   = "other keys"
	leases      = "leases"
	allBytes    = "bytes at the server"
	otherBytes  = "bytes at the server without fences"
	fenceBytes  = "bytes of a fence"
	files       = "files"
	fileBytes   = "bytes of files"
	names       = "names"
	cpu         = "seconds of CPU"
)

// A Sample is what was measured at one moment.
type Sample struct {
	Backend string  `json:"backend"`
	At      float64 `json:"at"` // seconds since the beginning
	// Rest: no user was at work, and pools of connections had been filled.
	Rest    bool               `json:"rest,omitempty"`
	Figures map[string]float64 `json:"figures"`
	// Operations counts calls since the beginning, by verb and outcome.
	Operations map[string]int64 `json:"operations,omitempty"`
	// Fault is what happened since the sample before.
	Fault string `json:"fault,omitempty"`
	// Last: the Clients are closed, and Figures has what is left of them.
	Last bool `json:"last,omitempty"`
	// Missing is why some figures are not there.
	Missing string `json:"missing,omitempty"`
}

// ReadSamples reads what a run has written.
func ReadSamples(path string) (plan Plan, all []Sample, err error) {
	f, err := os.Open(path)
	if err != nil {
		return plan, nil, err
	}
	defer f.Close()
	lines := json.NewDecoder(bufio.NewReader(f))
	if err := lines.Decode(&plan); err != nil {
		return plan, nil, fmt.Errorf("%s: %w", path, err)
	}
	for {
		var s Sample
		err := lines.Decode(&s)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // of a run that was killed
			return plan, all, nil
		}
		if err != nil {
			return plan, nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, s)
	}
}

// SamplesPath is where the samples of a report are.
func SamplesPath(report string) string { return strings.TrimSuffix(report, ".json") + ".samples.jsonl" }
