package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A diagnosis is one call of dlock doctor.
type diagnosis struct {
	*world
	*session
	ttl    time.Duration
	key    string
	asJSON bool
}

func (w *world) doctorCommand() *cobra.Command {
	d := &diagnosis{world: w}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether a backend is safe for locks",
		Long: `Doctor looks at a backend for what makes locks unsafe: how the server is set up, how
long it takes to answer beside the TTL, and whether we may do all that a lock needs. It
takes and releases a lock on a key of its own for that.

Every finding is ok, warning or unsafe, with what to do about it. Doctor exits 1 if one
is unsafe.`,
		Example: `  dlock doctor
  dlock doctor --backend redis://cache.internal --ttl 10s
  dlock doctor --json | jq '.findings[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.do(cmd) },
	}
	f := cmd.Flags()
	f.DurationVar(&d.ttl, "ttl", defaultRunTTL, "the shortest TTL that you use")
	f.StringVar(&d.key, "key", "", "try with this `KEY`, which must be free, where others are not permitted")
	f.BoolVar(&d.asJSON, "json", false, "as JSON")
	return cmd
}

func (d *diagnosis) do(cmd *cobra.Command) error {
	if d.ttl <= 0 {
		return usage(cmd, "--ttl %v is not positive", d.ttl)
	}
	var err error
	if d.session, err = d.connect(cmd, d.logger()); err != nil {
		return err
	}
	defer func() { _ = d.close() }()
	findings := d.settings(cmd.Context())
	tried, err := d.try(cmd.Context())
	if err != nil {
		return backendError(err)
	}
	findings = append(findings, tried...)
	if err := d.report(findings); err != nil {
		return err
	}
	if worst(findings) == driver.Unsafe {
		return &exit{ExitFinding, nil}
	}
	return nil
}

// settings is what the backend finds out about itself.
func (d *diagnosis) settings(ctx context.Context) []dlock.Finding {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	findings, err := d.client.Check(ctx)
	if err == nil || errors.Is(err, dlock.ErrUnsupported) {
		return findings
	}
	return append(findings, dlock.Finding{
		Level: driver.Warning, Name: "settings", Detail: "not all are known: " + err.Error(),
		Cure: "see to it that the backend answers, and permit to look at its settings",
	})
}

func worst(findings []dlock.Finding) driver.Level {
	level := driver.OK
	for _, f := range findings {
		level = max(level, f.Level)
	}
	return level
}

// report writes the findings.
func (d *diagnosis) report(findings []dlock.Finding) error {
	if !d.asJSON {
		return d.reportText(findings)
	}
	type finding struct {
		Level  string `json:"level"`
		Name   string `json:"name"`
		Detail string `json:"detail"`
		Cure   string `json:"cure,omitempty"`
	}
	all := struct {
		Backend  string    `json:"backend"`
		Where    string    `json:"where"`
		Level    string    `json:"level"` // the worst
		Findings []finding `json:"findings"`
	}{d.Name, d.Where, worst(findings).String(), []finding{}}
	for _, f := range findings {
		all.Findings = append(all.Findings, finding{f.Level.String(), f.Name, f.Detail, f.Cure})
	}
	return writeJSON(d.stdout, all)
}

var levelStyles = map[driver.Level]style{driver.OK: green, driver.Warning: yellow, driver.Unsafe: red}

var verdicts = map[driver.Level]string{
	driver.OK:      "Locks are safe here, as far as can be seen.",
	driver.Warning: "Locks work here. Read the warnings.",
	driver.Unsafe:  "Locks are NOT safe here.",
}

func (d *diagnosis) reportText(findings []dlock.Finding) error {
	p := d.palette(d.stdout)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.paint(strong, safe(d.Where)))
	for _, f := range findings {
		fmt.Fprintf(&b, "%s  %-15s  %s\n", p.paint(levelStyles[f.Level], fmt.Sprintf("%-7s", f.Level)), safe(f.Name), safe(f.Detail))
		if f.Level > driver.OK && f.Cure != "" {
			fmt.Fprintf(&b, "%26s%s\n", "", safe(f.Cure))
		}
	}
	level := worst(findings)
	fmt.Fprintf(&b, "\n%s\n", p.paint(levelStyles[level], verdicts[level]))
	return written(io.WriteString(d.stdout, b.String()))
}
