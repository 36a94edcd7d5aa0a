package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
)

func (w *app) showCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show who holds a lock and who waits for it",
		Long: `Show shows the holders of a lock with their fencing tokens, and those who wait for it
in the order in which they will get it. TOKEN is the greatest token that was given out
and is in use: what the lock guards should refuse smaller ones.

For a job of dlock run --every it also shows the last run; show KEY:runs lists those that
are still recorded.

Locks that are files do not know who waits: only the processes that do know it.`,
		Example: `  dlock show deploy
  dlock show --json deploy | jq .token`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return w.show(cmd, args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return w.completesKey(cmd)
}

func (w *app) show(cmd *cobra.Command, key string, asJSON bool) error {
	s, err := w.connect(cmd, w.logger())
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	locks, err := s.locks()
	if err != nil {
		return err
	}
	claims, err := locks.Inspect(cmd.Context(), key)
	if err != nil {
		return backendError(err)
	}
	k := locks.of(key, claims)
	last := findLastRun(cmd.Context(), locks.admin, key)
	if asJSON {
		return writeJSON(w.stdout, whole{k, k.queue, last})
	}
	if err := w.writeLock(&k); err != nil || last == nil {
		return err
	}
	return written(fmt.Fprintf(w.stdout, "\nlast run: %s\n", safe(last.text())))
}

// whole is a lock with its queue.
type whole struct {
	lock
	Queue []claim  `json:"queue"`
	Last  *lastRun `json:"last_run,omitempty"` // of a job that runs at most once per interval
}

// writeLock writes a lock for people.
func (w *app) writeLock(k *lock) error {
	p := w.palette(w.stdout)
	if k.isFree() {
		return written(fmt.Fprintf(w.stdout, "%s is free\n", p.paint(strong, safe(k.Key))))
	}
	token := "TOKEN " + strconv.FormatInt(k.Token, 10)
	if k.Token == 0 {
		token = "no token is known"
	}
	gap := "  "
	if columnsOf(safe(k.Key)+gap+k.mode()+gap+token) > room(w.stdout) {
		gap = "\n"
	}
	if err := written(fmt.Fprintf(w.stdout, "%s%s%s  %s\n\n", p.paint(strong, safe(k.Key)), gap, k.mode(), token)); err != nil {
		return err
	}
	if err := w.claimTable("HOLDER", "TOKEN", "HELD").write(w.stdout, claimRows(k.Holders, tokenOf)); err != nil || len(k.queue) == 0 {
		return err
	}
	if err := written(io.WriteString(w.stdout, "\n")); err != nil {
		return err
	}
	return w.claimTable("WAITER", "PLACE", "WAITING").write(w.stdout, claimRows(k.queue, place))
}

func (w *app) claimTable(who, number, since string) *table {
	t := &table{palette: w.palette(w.stdout), columns: []column{
		{name: number, right: true}, {name: "MODE"}, {name: who, shrink: cutEnd}, {name: since, right: true}, {name: "LEASE", right: true},
	}}
	if isTerminal(w.stdout) {
		t.width = width(w.stdout)
	}
	return t
}

func claimRows(claims []claim, number func(int, *claim) string) [][]cell {
	all := make([][]cell, len(claims))
	for i := range claims {
		c := &claims[i]
		mode := c.Mode
		if c.Limit > 0 {
			mode += " of " + strconv.Itoa(c.Limit)
		}
		all[i] = []cell{{number(i, c), plain}, {mode, plain}, {c.who(), plain}, c.ageCell(), c.leftCell()}
	}
	return all
}

func tokenOf(_ int, c *claim) string {
	if c.Token == 0 {
		return none.text
	}
	return strconv.FormatInt(c.Token, 10)
}

func place(i int, _ *claim) string { return strconv.Itoa(i + 1) }
