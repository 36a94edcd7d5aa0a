package judge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A testRecord is what is known of a test on the unmutated code.
type testRecord struct {
	Hash    string             `json:"hash"` // of its text
	Seconds float64            `json:"seconds"`
	Failed  bool               `json:"failed,omitempty"` // whenever it ran: it judges nothing
	Shaky   bool               `json:"shaky,omitempty"`  // it has failed without a mutant
	Reaches map[string]reached `json:"reaches"`          // by file and function
}

// reached are lines of a function that a test ran, counted from its first. If the function
// has another text now, all that is known is that the test calls it.
type reached struct {
	Hash  string   `json:"hash"`
	Lines [][2]int `json:"lines"`
}

// A suite is the tests of one package.
type suite struct {
	pkg  string // its folder, relative to the root
	path string // of the file that records it
	mu   sync.Mutex
	// tests are those that there are now.
	tests map[string]testRecord
}

// seconds is how long tests take when nothing is wrong.
func (s *suite) seconds(tests ...string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := 0.0
	for _, name := range tests {
		sum += s.tests[name].Seconds
	}
	return sum
}

// names are the tests that pass on the unmutated code.
func (s *suite) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, r := range s.tests {
		if !r.Failed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// markShaky records that a test has failed without a mutant.
func (s *suite) markShaky(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.tests[name]
	r.Shaky = true
	s.tests[name] = r
	return writeJSON(s.path, s.tests)
}

// record is what is known of a test.
func (s *suite) record(name string) testRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tests[name]
}

// measure runs each test of a package alone, to learn how long it takes and which lines of
// the packages it reaches. What the file records is not measured again.
func (j *Judge) measure(ctx context.Context, pkg string, covers []string) (*suite, error) {
	texts, err := testTexts(filepath.Join(j.Root, pkg))
	if err != nil {
		return nil, err
	}
	path := j.recordPath(pkg)
	s := &suite{pkg: pkg, path: path, tests: map[string]testRecord{}}
	if err := readJSON(path, &s.tests); err != nil {
		return nil, err
	}
	var missing []string
	for name, text := range texts {
		if j.Fresh || s.tests[name].Hash != text {
			missing = append(missing, name)
		}
	}
	for name := range s.tests {
		if texts[name] == "" {
			delete(s.tests, name)
		}
	}
	if len(missing) == 0 {
		return s, nil
	}
	slices.Sort(missing)
	binary := filepath.Join(j.tmp, "cover", strings.ReplaceAll(pkg, "/", "-")+".test")
	if err := j.builder.build(ctx, pkg, binary, "-covermode=atomic", "-coverpkg=./"+strings.Join(covers, ",./")); err != nil {
		return nil, err
	}
	return s, j.measureTests(ctx, s, missing, texts, binary)
}

func (j *Judge) measureTests(ctx context.Context, s *suite, missing []string, texts map[string]string, binary string) error {
	var (
		wg    sync.WaitGroup
		errs  []error
		done  int
		queue = make(chan string)
	)
	one := func(name string) {
		r, err := j.measureTest(ctx, s.pkg, name, binary)
		r.Hash = texts[name]
		s.mu.Lock()
		defer s.mu.Unlock()
		done++
		if err != nil {
			errs = append(errs, err)
			return
		}
		s.tests[name] = r
		if done%20 == 0 || done == len(missing) {
			j.Progress(fmt.Sprintf("measuring the tests of %s: %d of %d", s.pkg, done, len(missing)))
			errs = append(errs, writeJSON(s.path, s.tests))
		}
	}
	for range j.Jobs {
		wg.Go(func() {
			for name := range queue {
				one(name)
			}
		})
	}
	for _, name := range missing {
		if ctx.Err() != nil {
			break
		}
		queue <- name
	}
	close(queue)
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// measureTest runs a test that fails again, since machines are busy.
func (j *Judge) measureTest(ctx context.Context, pkg, name, binary string) (testRecord, error) {
	var r testRecord
	for range 3 {
		tmp, err := os.MkdirTemp(j.tmp, "test-")
		if err != nil {
			return r, err
		}
		profile := filepath.Join(tmp, "profile")
		c := command{dir: filepath.Join(j.Root, pkg), tmp: tmp, env: testEnv, limit: 10 * time.Minute, args: []string{
			binary, "-test.run", only(name), "-test.coverprofile", profile,
		}}
		begun := time.Now()
		_, timedOut, err := c.run(ctx)
		r.Seconds = time.Since(begun).Seconds()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return r, err
		}
		r.Failed = err != nil || timedOut
		if !r.Failed {
			r.Reaches, err = j.reaches(profile)
			return r, errors.Join(err, os.RemoveAll(tmp))
		}
		if err := os.RemoveAll(tmp); err != nil {
			return r, err
		}
	}
	return r, nil
}

var profileLine = regexp.MustCompile(`^(.*):(\d+)\.\d+,(\d+)\.\d+ \d+ ([1-9]\d*)$`)

// reaches reads a profile of the go command.
func (j *Judge) reaches(profile string) (map[string]reached, error) {
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	found := map[string]reached{}
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		m := profileLine.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		file := strings.TrimPrefix(m[1], j.Module+"/")
		first, _ := strconv.Atoi(m[2]) // digits, by the pattern
		last, _ := strconv.Atoi(m[3])
		funcs, err := j.functions(file)
		if err != nil {
			return nil, err
		}
		for name, f := range funcs {
			if f.first <= first && last <= f.last {
				r := found[file+" "+name]
				r.Hash, r.Lines = f.hash, append(r.Lines, [2]int{first - f.first, last - f.first})
				found[file+" "+name] = r
			}
		}
	}
	return found, nil
}

// functions are those of a file of the working tree, read once.
func (j *Judge) functions(file string) (map[string]function, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if funcs, ok := j.funcs[file]; ok {
		return funcs, nil
	}
	src, err := os.ReadFile(filepath.Join(j.Root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	funcs, err := functions(src)
	if err == nil {
		j.funcs[file] = funcs
	}
	return funcs, err
}

// distance says how near a test comes to a mutant: 0 if it runs its line, 1 if it calls its
// function, 2 if not even that.
func (r testRecord) distance(m mutate.Mutant, f function) int {
	at, ok := r.Reaches[m.File+" "+m.Func]
	if !ok {
		return 2
	}
	if at.Hash != f.hash {
		return 0
	}
	line := m.Line - f.first
	if slices.ContainsFunc(at.Lines, func(l [2]int) bool { return l[0] <= line && line <= l[1] }) {
		return 0
	}
	return 1
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// writeJSON replaces the file in one step.
func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
