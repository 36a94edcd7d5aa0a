package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A diagnosis is one call of dlock doctor.
type diagnosis struct {
	*app
	*session
	ttl    time.Duration
	key    string
	asJSON bool
}

func (w *app) doctorCommand() *cobra.Command {
	d := &diagnosis{app: w}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether a backend is safe for locks",
		Long: `Doctor looks at a backend for what makes locks unsafe: how the server is set up, how
long it takes to answer compared with the TTL, and whether we may do all that a lock needs. It
takes and releases a lock for that, on a key of its own; if the backend is one file, on
its key.

Every finding is ok, warning or unsafe, with what to do about it. Doctor exits 1 if one
is unsafe.`,
		Example: `  dlock doctor
  dlock doctor --backend redis://cache.internal --ttl 10s
  dlock doctor --json | jq '.findings[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.do(cmd) },
	}
	f := cmd.Flags()
	f.Var(newDuration(&d.ttl, defaultRunTTL), "ttl", "the shortest TTL that you use")
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
	findings := lockreader.Settings(cmd.Context(), d.client)
	tried, err := d.try(cmd.Context())
	if err != nil {
		return backendError(err)
	}
	findings = append(findings, tried...)
	for i := range findings { // users of the command have no options of Go
		findings[i].Fix = strings.ReplaceAll(findings[i].Fix, "WithMinReplicas", "min_replicas")
	}
	if err := d.report(findings); err != nil {
		return err
	}
	if lockreader.Worst(findings) == dlock.LevelUnsafe {
		return &exit{ExitFinding, nil}
	}
	return nil
}

// report writes the findings.
func (d *diagnosis) report(findings []dlock.Finding) error {
	if !d.asJSON {
		return d.reportText(findings)
	}
	return writeJSON(d.stdout, struct {
		Backend  string          `json:"backend"`
		Where    string          `json:"where"`
		Level    dlock.Level     `json:"level"` // the worst
		Findings []dlock.Finding `json:"findings"`
	}{d.Name, d.Where, lockreader.Worst(findings), append([]dlock.Finding{}, findings...)})
}

var levelStyles = map[dlock.Level]style{dlock.LevelOK: green, dlock.LevelWarning: yellow, dlock.LevelUnsafe: red}

var verdicts = map[dlock.Level]string{
	dlock.LevelOK:      "Locks are safe here, as far as can be seen.",
	dlock.LevelWarning: "Locks work here. Read the warnings.",
	dlock.LevelUnsafe:  "Locks are NOT safe here.",
}

func (d *diagnosis) reportText(findings []dlock.Finding) error {
	const indent = 26 // of what is found
	p, columns := d.palette(d.stdout), room(d.stdout)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.paint(strong, safe(d.Where)))
	for _, f := range findings {
		fmt.Fprintf(&b, "%s  %-15s  %s\n", p.paint(levelStyles[f.Level], fmt.Sprintf("%-7s", f.Level)), safe(f.Name), wrap(safe(f.Detail), indent, columns))
		if f.Level != dlock.LevelOK && f.Fix != "" {
			fmt.Fprintf(&b, "%*s%s\n", indent, "", wrap(safe(f.Fix), indent, columns))
		}
	}
	level := lockreader.Worst(findings)
	fmt.Fprintf(&b, "\n%s\n", p.paint(levelStyles[level], verdicts[level]))
	return written(io.WriteString(d.stdout, b.String()))
}
