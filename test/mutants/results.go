package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A result is one line of the file of results.
type result struct {
	ID string `json:"id"`
	mutate.Mutant
	judge.Verdict
	Seconds  float64   `json:"seconds"`
	At       time.Time `json:"at"`
	FileHash string    `json:"file_hash"`
	TestHash string    `json:"test_hash"` // of the suite that caught it; of all suites if none did
	Quick    bool      `json:"quick"`     // the whole suites were not run
}

// results are kept in a file of JSON lines; of two for one mutant the later counts.
type results struct {
	mu   sync.Mutex
	path string
	byID map[string]result
}

func loadResults(path string) (*results, error) {
	r := &results{path: path, byID: map[string]result{}}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var one result
		if json.Unmarshal(scanner.Bytes(), &one) == nil { // an interrupted write leaves half a line
			r.byID[one.ID] = one
		}
	}
	return r, scanner.Err()
}

func (r *results) add(one result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[one.ID] = one
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s\n", text)
	return errors.Join(err, file.Close())
}

// find returns a result that still holds. One that says "caught" does as long as the file,
// the tests of the package that caught it and their helpers stay as they are. One that says
// "survived" does not outlive any change of the tests.
func (r *results) find(j *judge.Judge, s source, m mutate.Mutant) (result, bool, error) {
	r.mu.Lock()
	one, ok := r.byID[m.ID()]
	r.mu.Unlock()
	if !ok || one.FileHash != textHash(s.text) {
		return one, false, nil
	}
	current, err := j.TestHash(s.target, one.Suite, one.Test)
	return one, err == nil && one.TestHash == current, err
}

func textHash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
