package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A run is one call of dlock run.
type run struct {
	*app
	cmd   *cobra.Command
	key   string
	args  []string // the command and its arguments
	shell string   // the command as a string for sh
	path  string   // where the command is

	try, shared, quiet, asJSON bool

	permits  int
	conflict int // the exit code if the lock is taken
	wait     time.Duration
	ttl      time.Duration
	grace    time.Duration // from asking the command to end to killing it
	minHold  time.Duration
	maxHold  time.Duration
	onLost   string

	*session
	reporter reporter
	guard    *dlock.Guard
	taken    time.Time

	unrenewed <-chan error // why renewals fail

	guardianGone func() // waits for the guardian; nil if there was none
}

const (
	defaultRunTTL = 30 * time.Second
	defaultGrace  = 5 * time.Second
)

func (w *app) runCommand() *cobra.Command {
	r := &run{app: w}
	cmd := &cobra.Command{
		Use:   "run [flags] KEY [flags] -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Run waits for the lock KEY, runs the command, and releases the lock when the command
has ended. It exits with the command's own code.

Standard input, output and error are those of the command. Signals are passed on to
it and to all its children, which are a process group of their own. The command
finds DLOCK_KEY, DLOCK_TOKEN (the fencing token: give it to what you write to, and
let that refuse a smaller one) and DLOCK_BACKEND_NAME in its environment.

If the lock cannot be renewed, the command is sent KILL a twentieth of the TTL before
another process could get the lock, and TERM one grace period before that. If the lock
is taken away, TERM follows within a third of the TTL, and KILL one grace period later.

Exit codes other than the command's own:
  64   wrong arguments              75   another client has the lock
  69   the backend fails            76   the lock was lost, and the command ended
  126  the command cannot be run    127  the command is not found
  128+N the command, or the wait for the lock, was ended by signal N`,
		Example: `  dlock run backup -- tar czf /backup/home.tgz /home
  dlock run --try nightly -- ./report.sh      # exit 75 at once if it runs already
  dlock run --wait 30s deploy -- make deploy
  dlock run -n nightly -c './report.sh | mail -s report ops'
  dlock run --shared data -- ./read.sh        # together with other readers
  dlock run --permits 3 gpu -- ./train.sh     # at most three at a time`,
		Args: r.parse,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.cmd = cmd
			if cmd.Flags().Changed("help") {
				return cmd.Help()
			}
			return r.do()
		},
	}
	r.flags(cmd)
	return cmd
}

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
		r.args = []string{"sh", "-c", r.shell}
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
	f.IntVar(&r.permits, "permits", 0, "at most `N` hold at a time; all must say the same N")
	f.Var(newDuration(&r.minHold, 0), "min-hold", "keep the lock for at least this long, so that a short job runs once though clocks differ")
	f.Var(newDuration(&r.maxHold, 0), "max-hold", "end the command after this long, and exit 76")
	f.Var(newDuration(&r.grace, defaultGrace), "grace", "from TERM to KILL; a third of --ttl if that is less")
	f.StringVar(&r.onLost, "on-lost", "kill", "what to do with the command if the lock is lost: kill or warn")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing but errors")
	f.BoolVar(&r.asJSON, "json", false, "write what happens to standard error as lines of JSON")
}

// check refuses what cannot be meant, before anything is done.
func (r *run) check() error {
	changed := r.cmd.Flags().Changed
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
	case r.ttl < 3*r.grace:
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

// do runs the command, and reports as JSON why it could not, if that is asked for.
func (r *run) do() error {
	r.reporter = newReporter(r)
	err := r.withConflictCode(r.run())
	var e *exit
	if !r.asJSON || !errors.As(err, &e) || e.err == nil {
		return err
	}
	r.reporter.event(event{What: "failed", Code: &e.code, Error: e.err.Error()})
	return &exit{e.code, nil}
}

// withConflictCode replaces the exit code of a lock that is taken.
func (r *run) withConflictCode(err error) error {
	var e *exit
	if errors.As(err, &e) && errors.Is(e.err, dlock.ErrLockHeldByOther) {
		return &exit{r.conflict, e.err}
	}
	return err
}

func (r *run) run() (err error) {
	if err := r.check(); err != nil {
		return usage(r.cmd, "%w", err)
	}
	if r.path, err = find(r.args[0]); err != nil {
		return err
	}
	log, unrenewed := watchRenewals(r.logger())
	r.unrenewed = unrenewed
	if r.session, err = r.connect(r.cmd, log); err != nil {
		return err
	}
	defer r.endSession()
	signals := listen()
	defer signal.Stop(signals)
	if err := r.acquire(signals); err != nil {
		return backendError(err)
	}
	code, err := r.supervise(signals)
	if err != nil {
		return err
	}
	r.linger(signals)
	return r.finish(code)
}

// find looks for the command before anybody waits for it.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "", exitWith(ExitCannotRun, "%s: cannot be run: %w", name, errors.Unwrap(err))
	default:
		return "", exitWith(ExitNotFound, "%s: command not found", name)
	}
}

// acquire waits for the lock. A signal ends the wait.
func (r *run) acquire(signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(r.cmd.Context())
	defer cancel(nil)
	watching := make(chan struct{})
	defer close(watching)
	go func() {
		for {
			select {
			case s := <-signals:
				if ends(s) {
					cancel(signalled{s})
					return
				}
			case <-watching:
				return
			}
		}
	}()
	stop := r.reporter.waits(r.session, r.key)
	g, err := r.client.Acquire(ctx, r.key, r.options()...)
	stop()
	if err != nil {
		return err
	}
	r.guard, r.taken = g, time.Now()
	if err := r.lengthen(ctx); err != nil {
		return err
	}
	r.reporter.event(event{What: "acquired", Token: g.Token()})
	return nil
}

// lengthen waits for the whole lease. A caller that has waited for a lock gets it for what is
// left of a heartbeat, which may be less than the command would need to end.
func (r *run) lengthen(ctx context.Context) error {
	if r.guard.Remaining() > r.ttl*2/3 {
		return nil
	}
	return r.guard.Extend(ctx, r.ttl)
}

func (r *run) options() []dlock.LockOption {
	opts := []dlock.LockOption{
		dlock.WithTTL(r.ttl),
		dlock.WithInfo(dlock.Info{Owner: userName(r.getenv), Purpose: filepath.Base(r.args[0])}),
	}
	if r.minHold > 0 {
		opts = append(opts, dlock.WithMinHold(r.minHold))
	}
	switch {
	case r.try:
		opts = append(opts, dlock.WithWait(0))
	case r.wait > 0, r.cmd.Flags().Changed("wait"):
		opts = append(opts, dlock.WithWait(r.wait))
	}
	switch {
	case r.shared:
		opts = append(opts, dlock.WithShared())
	case r.permits > 0:
		opts = append(opts, dlock.WithPermits(r.permits))
	}
	return opts
}

// userName is who runs the command, for those who wait.
func userName(getenv func(string) string) string {
	for _, name := range []string{"USER", "LOGNAME"} {
		if u := getenv(name); u != "" && len(u) < 100 {
			return u
		}
	}
	return "uid-" + strconv.Itoa(os.Getuid())
}

// environment is what the command gets in addition to our environment.
func (r *run) environment() []string {
	return append(os.Environ(),
		"DLOCK_KEY="+r.key,
		"DLOCK_TOKEN="+strconv.FormatInt(r.guard.Token(), 10),
		"DLOCK_BACKEND_NAME="+r.Name,
	)
}

// linger keeps the lock for as long as --min-hold asks: by its lease, after this process has ended,
// or else by waiting. A signal ends the wait.
func (r *run) linger(signals <-chan os.Signal) {
	left := time.Until(r.taken.Add(r.minHold))
	if left <= 0 || r.leave(left) {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-r.guard.Done():
			return
		case s := <-signals:
			if ends(s) {
				return
			}
		}
	}
}

// leave leaves the lock to its lease, which it makes as long as is asked for. It reports whether it
// could: a file has no lease.
func (r *run) leave(left time.Duration) bool {
	if r.guard.Remaining() >= endless {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.cmd.Context()), r.ttl/3)
	defer cancel()
	return r.guard.Extend(ctx, left) == nil
}

// finish releases the lock. A lock that was lost meanwhile is reported, since
// another process may have done the same work.
func (r *run) finish(code int) error {
	err := r.guard.Unlock(context.WithoutCancel(r.cmd.Context()))
	switch {
	case errors.Is(err, dlock.ErrOwnershipLost) && r.onLost == "kill":
		r.reporter.event(event{What: "lost", Error: err.Error()})
		return &exit{ExitLost, fmt.Errorf("the lock was lost before the command ended: %w", err)}
	case err != nil:
		r.reporter.event(event{What: "unconfirmed", Error: err.Error()})
	}
	if code != 0 {
		return &exit{code, nil}
	}
	return nil
}

// endSession ends the session, and the lock with it if it is still there.
func (r *run) endSession() {
	if err := r.close(); err != nil {
		r.reporter.event(event{What: "unconfirmed", Error: err.Error()})
	}
	if r.guardianGone != nil {
		r.guardianGone()
	}
}
