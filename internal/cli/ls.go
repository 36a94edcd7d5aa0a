package cli

import (
	"encoding/base64"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/lockreader"
)

// A listing is one call of dlock ls.
type listing struct {
	*app
	prefix, after string
	limit         int
	asJSON        bool
}

func (w *app) lsCommand() *cobra.Command {
	l := &listing{app: w}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the locks that are held, and by whom",
		Long: `Ls lists the locks that are held or waited for: the mode, a holder and how many more
there are, for how long it is held, how much of the lease is left if nothing renews
it, and how many wait.

Locks are shown as they are found, however many there are; up to 500 of them are in
the order of their keys. A key that is taken or released meanwhile may be missing or,
on a Redis that grows, be there twice.

With --limit the rest is named on standard error: give what it says to --after. With
--json, standard output has one lock per line, and standard error {"next": CURSOR}.`,
		Example: `  dlock ls
  dlock ls --prefix orders:
  dlock ls --json | jq -r 'select(.waiters > 10) | .key'
  dlock ls --limit 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.do(cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&l.prefix, "prefix", "p", "", "only keys that begin with this")
	f.IntVar(&l.limit, "limit", 0, "at most `N` keys; 0 is all")
	f.StringVar(&l.after, "after", "", "go on from this `CURSOR` of a call with --limit")
	f.BoolVar(&l.asJSON, "json", false, "one line of JSON for each lock")
	_ = cmd.RegisterFlagCompletionFunc("prefix", w.completeKey)
	return cmd
}

func (l *listing) do(cmd *cobra.Command) error {
	cursor, err := base64.RawURLEncoding.DecodeString(l.after)
	switch {
	case err != nil:
		return usage(cmd, "--after: %q is no cursor", l.after)
	case l.limit < 0:
		return usage(cmd, "--limit %d is negative", l.limit)
	}
	s, err := l.connect(cmd, l.logger())
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	locks, err := s.locks()
	if err != nil {
		return err
	}
	write := l.writer()
	next, err := locks.Pages(cmd.Context(), l.prefix, string(cursor), l.limit, func(keys []string) error {
		found, err := locks.read(cmd.Context(), keys)
		if err != nil {
			return err
		}
		return write(found)
	})
	if err != nil || next == "" {
		return backendError(err)
	}
	return l.printNext(base64.RawURLEncoding.EncodeToString([]byte(next)))
}

// writer writes pages as they come.
func (l *listing) writer() func([]lock) error {
	if l.asJSON {
		return func(page []lock) error {
			for i := range page {
				if err := writeJSON(l.stdout, page[i]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t := l.lockTable()
	return func(page []lock) error { return t.write(l.stdout, rows(page)) }
}

func (l *listing) printNext(cursor string) error {
	if l.asJSON {
		return writeJSON(l.stderr, map[string]string{"next": cursor})
	}
	l.say("there may be more: add --after %s", cursor)
	return nil
}

// lockTable is the table of ls and of watch.
func (w *app) lockTable() *table {
	t := &table{palette: w.palette(w.stdout), columns: []column{
		{name: "KEY", shrink: cutMiddle},
		{name: "MODE"},
		{name: "HOLDER", shrink: cutEnd},
		{name: "HELD", right: true},
		{name: "LEASE", right: true},
		{name: "WAITERS", right: true},
	}}
	if isTerminal(w.stdout) {
		t.width = width(w.stdout)
	}
	return t
}

func rows(locks []lock) [][]cell {
	all := make([][]cell, len(locks))
	for i := range locks {
		all[i] = locks[i].row()
	}
	return all
}

func (k *lock) row() []cell {
	r := []cell{{safe(k.Key), plain}, {k.mode(), plain}, {k.holder(), plain}, none, none, k.waiters()}
	switch {
	case k.Error != "":
		r[2] = cell{"? " + safe(k.Error), red}
	case len(k.Holders) > 0:
		r[3], r[4] = k.Holders[0].ageCell(), k.Holders[0].leftCell()
	}
	return r
}

var none = cell{"-", dim}

// mode is exclusive, "shared by 3", or "2 of 5 permits".
func (k *lock) mode() string {
	switch k.Mode {
	case "":
		return none.text
	case "shared":
		return fmt.Sprintf("shared by %d", len(k.Holders))
	case "permit":
		return fmt.Sprintf("%d of %d permits", len(k.Holders), k.Limit)
	}
	return k.Mode
}

// holder is the first of them, who has it for longest.
func (k *lock) holder() string {
	switch n := len(k.Holders); n {
	case 0:
		return none.text
	case 1:
		return k.Holders[0].who()
	default:
		return fmt.Sprintf("%s and %d more", k.Holders[0].who(), n-1)
	}
}

func (k *lock) waiters() cell {
	switch {
	case k.Waiters == nil:
		return none
	case *k.Waiters > 0:
		return cell{fmt.Sprint(*k.Waiters), yellow}
	}
	return cell{"0", plain}
}

func (c *claim) who() string { return safe(lockreader.Describe(c.Info)) }

func (c *claim) ageCell() cell {
	if c.Held == nil && c.Waiting == nil {
		return none
	}
	return cell{age(c.age), plain}
}

// soon is what is left of a lease that is not renewed as it should.
const soon = 2 * time.Second

func (c *claim) leftCell() cell {
	switch {
	case c.Left == nil:
		return none
	case c.left < soon:
		return cell{age(c.left), yellow}
	}
	return cell{age(c.left), plain}
}
