package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// parse reads the key and the command. Flags may also stand between them, as those of flock do.
func (r *run) parse(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("a KEY and a COMMAND are needed")
	}
	f := cmd.Flags()
	r.key, r.args = args[0], args[1:]
	if len(r.args) > 0 && strings.HasPrefix(r.args[0], "-") {
		if err := f.Parse(r.args); err != nil {
			return err
		}
		r.args = f.Args()
	}
	switch {
	case f.Changed("help"):
	case r.shell != "" && len(r.args) > 0:
		return errors.New("--command and a COMMAND exclude each other")
	case r.shell != "":
		r.args = append(slices.Clone(shell), r.shell)
	case len(r.args) == 0:
		return errors.New("a KEY and a COMMAND are needed")
	}
	return nil
}

func (r *run) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows KEY belongs to the command
	f.BoolVarP(&r.try, "try", "n", false, "do not wait: exit 75 if the lock is taken")
	f.StringVarP(&r.shell, "command", "c", "", "run this `string` with sh -c")
	f.VarP(newDuration(&r.wait, 0), "wait", "w", "wait at most this long, then exit 75; a number alone means seconds")
	f.IntVarP(&r.conflict, "conflict-exit-code", "E", ExitNotAcquired, "exit with `N` instead of 75 if the lock is taken")
	f.Var(newDuration(&r.ttl, defaultRunTTL), "ttl", "how long the lock outlives this process, at least three times --grace; files need none")
	f.BoolVarP(&r.shared, "shared", "s", false, "hold together with others that do the same; those that do not wait for all of them")
	f.IntVar(&r.permits, "permits", 0, "at most `N` hold at a time; all must pass the same N")
	f.Var(newDuration(&r.minHold, 0), "min-hold", "keep the lock for at least this long, so that a short job runs once though clocks differ: by its lease, after dlock has ended; for files, which have none, dlock waits")
	f.Var(newDuration(&r.maxHold, 0), "max-hold", "end the command after this long, and exit 76")
	f.Var(newDuration(&r.every, 0), "every", "run at most once per this interval, on any host; otherwise skip and exit 0, or wait with --wait")
	f.BoolVar(&r.retry, "retry", false, "with --every: a command that failed may run again at once")
	f.Var(newDuration(&r.grace, defaultGrace), "grace", "from TERM to KILL; a third of --ttl if that is less")
	f.StringVar(&r.onLost, "on-lost", "kill", "what to do with the command if the lock is lost: kill or warn")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]cobra.Completion{"kill", "warn"}, cobra.ShellCompDirectiveNoFileComp))
	f.StringVar(&r.textfile, "metrics-textfile", "", "write metrics of the run to this `FILE.prom`, for the textfile collector of node_exporter")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "write only errors")
	f.BoolVar(&r.asJSON, "json", false, "write what happens to standard error as lines of JSON")
}

// check refuses what cannot be meant, before anything is done.
func (r *run) check() error {
	changed := r.cmd.Flags().Changed
	if err := errors.Join(r.checkEvery(), r.checkTextfile()); err != nil {
		return err
	}
	if !changed("grace") {
		r.grace = min(r.grace, r.ttl/3)
	}
	switch {
	case r.try && changed("wait"):
		return errors.New("--try and --wait exclude each other")
	case r.shared && changed("permits"):
		return errors.New("--shared and --permits exclude each other")
	case changed("permits") && r.permits < 1:
		return fmt.Errorf("--permits %d is below 1", r.permits)
	case r.wait < 0, r.minHold < 0, r.maxHold < 0:
		return errors.New("--wait, --min-hold and --max-hold cannot be negative")
	case r.ttl <= 0:
		return fmt.Errorf("--ttl %v is not positive", r.ttl)
	case r.grace < 0:
		return fmt.Errorf("--grace %v is negative", r.grace)
	case r.grace > r.ttl/3: // a product could overflow
		return fmt.Errorf("--ttl %v is less than three times --grace %v: there would be no time to end the command before the lock passes on", r.ttl, r.grace)
	case r.maxHold > 0 && r.minHold > r.maxHold:
		return fmt.Errorf("--min-hold %v is above --max-hold %v", r.minHold, r.maxHold)
	case r.conflict < 0 || r.conflict > 255:
		return fmt.Errorf("--conflict-exit-code %d is not between 0 and 255", r.conflict)
	case r.onLost != "kill" && r.onLost != "warn":
		return fmt.Errorf("--on-lost %q is neither kill nor warn", r.onLost)
	}
	return nil
}

// checkEvery refuses what cannot be combined with --every. A lease that is longer than the interval would delay the next run.
func (r *run) checkEvery() error {
	changed := r.cmd.Flags().Changed
	switch {
	case !changed("every") && r.retry:
		return errors.New("--retry needs --every")
	case !changed("every"):
		return nil
	case r.every <= 0:
		return fmt.Errorf("--every %v is not positive", r.every)
	case r.every > maxEvery:
		return fmt.Errorf("--every %v is above %v", r.every, maxEvery)
	}
	for _, name := range []string{"try", "shared", "permits", "min-hold"} {
		if changed(name) {
			return fmt.Errorf("--every and --%s exclude each other", name)
		}
	}
	if !changed("ttl") {
		r.ttl = min(r.ttl, r.every*9/10)
	}
	if r.ttl > r.every*9/10 {
		return fmt.Errorf("--ttl %v is above nine tenths of --every %v", r.ttl, r.every)
	}
	return nil
}

// maxEvery is the longest lease.
const maxEvery = 24 * time.Hour
