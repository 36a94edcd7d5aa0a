package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/ceyewan/genesis/internal/cli/bench"
	"github.com/ceyewan/genesis/internal/humanize"
)

// show writes the report wherever it was asked for.
func (c *benchmark) show(r *bench.Report, html *pageFile) error {
	if err := html.write(r); err != nil {
		return err
	}
	var err error
	if c.asJSON {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		columns := math.MaxInt // a file is as wide as it must be
		if isTerminal(c.stdout) {
			columns = width(c.stdout)
		}
		err = r.WriteTable(c.stdout, columns)
	}
	if err != nil {
		return exitWith(ExitOutput, "standard output: %w", err)
	}
	return nil
}

// A pageFile is where HTML goes. It is opened before anything is measured, so that
// a run is not spent on a report that cannot be written, and changed only by a report.
type pageFile struct {
	*os.File
	fresh bool // it did not exist before
}

// openPage returns nil if no page is wanted.
func (c *benchmark) openPage() (*pageFile, error) {
	if c.page == "" {
		return nil, nil
	}
	_, err := os.Stat(c.page)
	fresh := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(c.page, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, usage(c.cmd, "--html: %w", err)
	}
	return &pageFile{f, fresh}, nil
}

func (p *pageFile) write(r *bench.Report) error {
	if p == nil {
		return nil
	}
	var text bytes.Buffer
	err := r.WritePage(&text)
	if st, serr := p.Stat(); err == nil && serr == nil && st.Mode().IsRegular() {
		err = p.Truncate(0)
	}
	if err == nil {
		_, err = io.Copy(p.File, &text)
	}
	if err != nil {
		return exitWith(ExitOutput, "--html: %w", err)
	}
	p.fresh = false
	return nil
}

// close takes a file away that has got no report.
func (p *pageFile) close() error {
	if p == nil {
		return nil
	}
	err := p.Close()
	if p.fresh {
		err = os.Remove(p.Name())
	}
	if err != nil {
		return exitWith(ExitOutput, "--html: %w", err)
	}
	return nil
}

// finished is a line for those who cannot see a line that changes.
func finished(s bench.Step) string {
	return fmt.Sprintf("%s: %s acquisitions/s, P99 wait %s", about(s), humanize.Count(s.Ended.Rate), humanize.Seconds(s.Ended.Wait.P99))
}

func about(s bench.Step) string {
	return fmt.Sprintf("%d/%d, round %d, %s, %s", s.Number, s.Steps, s.Round, bench.ClientsName(s.Clients), bench.SectionName(s.Section))
}
