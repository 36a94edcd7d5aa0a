package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/clog"
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

	refused error // why the arguments cannot be read

	try, shared, quiet, asJSON bool

	textfile string // where metrics go

	permits  int
	conflict int       // the exit code if the lock is taken
	giveUp   time.Time // until when to connect and to wait, if that is limited
	wait     time.Duration
	ttl      time.Duration
	grace    time.Duration // from asking the command to end to killing it
	minHold  time.Duration
	maxHold  time.Duration
	onLost   string
	every    time.Duration
	retry    bool // with every: a command that failed may run again at once

	*session
	signals         chan os.Signal // until the metrics are sent; nil before the wait for the lock
	reporter        reporter
	guard           *dlock.Guard
	taken           time.Time
	toldLoss        bool // that the lock was lost is reported
	toldUnconfirmed bool // that the release is not confirmed is reported
	toldToEnd       bool // by a signal
	ranOut          bool // the lock was lost, but the command had ended before

	isLost      bool // before the command had ended
	skipped     bool // it was not due
	commandCode *int // of the command, if it has run

	unrenewed <-chan error // why renewals fail
	failing   <-chan error // why other calls fail

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
it and to all its children, which are a process group of their own. A child that
leaves the group, as with setsid, gets no signal, and is not ended. The command
finds DLOCK_KEY, DLOCK_TOKEN (the fencing token: give it to what you write to, and
let that refuse a smaller one) and DLOCK_BACKEND_NAME in its environment.

If the lock cannot be renewed, the command is sent KILL a twentieth of the TTL before
another process could get the lock, and TERM one grace period before that. If the lock
is taken away, TERM follows within a third of the TTL, and KILL one grace period later.

With --every, the command runs at most once per interval, on any of several hosts: the
others skip, say so, and exit 0. It needs a backend with leases. dlock show KEY shows
the last run.

Metrics of the run are written to --metrics-textfile, and sent over HTTP to the OpenTelemetry
collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

Exit codes other than the command's own:
  64   wrong arguments              75   another client has the lock
  69   the backend fails            76   the lock was lost
  126  the command cannot be run    127  the command is not found
  128+N the command, or the wait for the lock, was ended by signal N`,
		Example: `  dlock run backup -- tar czf /backup/home.tgz /home
  dlock run --try nightly -- ./report.sh      # exit 75 at once if it runs already
  dlock run --wait 30s deploy -- make deploy
  dlock run -n nightly -c './report.sh | tee report.log'
  dlock run --shared data -- ./read.sh        # together with other readers
  dlock run --permits 3 gpu -- ./train.sh     # at most three at a time
  dlock run --backend redis://localhost --every 1h report -- ./report.sh  # on one host, once an hour`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.cmd = cmd
			if err := r.parse(cmd, args); err != nil {
				return r.refuse(err)
			}
			if cmd.Flags().Changed("help") {
				return cmd.Help()
			}
			return r.do()
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		r.cmd = cmd
		return r.refuse(err)
	})
	r.flags(cmd)
	return cmd
}

// refuse reports wrong arguments. --json may stand after what could not be read.
func (r *run) refuse(err error) error {
	options := r.arguments
	if end := slices.Index(options, "--"); end >= 0 {
		options = options[:end]
	}
	r.asJSON = r.asJSON || slices.Contains(options, "--json")
	r.refused = err
	return r.do()
}

// do runs the command, and reports as JSON why it could not, if that is asked for.
func (r *run) do() error {
	r.reporter = newReporter(r)
	events := newUnblockedWriter(r.stderr)
	defer func() { events.flush(r.patience()) }()
	defer func() {
		if r.signals != nil {
			signal.Stop(r.signals)
		}
	}()
	r.reporter.events = events
	began := time.Now()
	err := r.run()
	wrongUsage := isUsageExit(err) // -E 64 gives a lock that is taken the same code
	err = r.withConflictCode(err)
	if !wrongUsage {
		r.publish(began, codeOf(err))
	}
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
	if r.refused != nil {
		return usage(r.cmd, "%w", r.refused)
	}
	if err := r.check(); err != nil {
		return usage(r.cmd, "%w", err)
	}
	if r.path, err = find(r.args[0]); err != nil {
		return err
	}
	var log clog.Logger
	log, r.unrenewed, r.failing = watchClient(r.logger())
	if err := r.begin(log); err != nil {
		return err
	}
	defer r.endSession()
	r.signals = listen()
	if r.every > 0 {
		return r.runEvery(r.signals)
	}
	if err := r.acquire(r.signals); err != nil {
		return err
	}
	code, err := r.supervise(r.signals)
	if err != nil {
		return err
	}
	r.linger(r.signals)
	return r.finish(code)
}

// logger is the log of the lock client, as lines of JSON with --json. It goes where events go.
func (r *run) logger() clog.Logger {
	switch {
	case !r.verbose:
		return clog.Logger{}
	case r.asJSON:
		return debugLog("json", r.reporter.events)
	}
	return debugLog("console", r.reporter.events)
}

// heeds is ends, for signals to us, and remembers them.
func (r *run) heeds(s os.Signal) bool {
	r.toldToEnd = r.toldToEnd || ends(s)
	return ends(s)
}

// patience is how long to wait at the end for whoever reads what we have written: without a limit, unless we were told to end.
func (r *run) patience() <-chan time.Time {
	if r.toldToEnd {
		return time.After(unreadTimeout)
	}
	return nil
}

// unreadTimeout is how long a reader that does not read may delay the end that a signal asks for.
const unreadTimeout = time.Second

// begin opens the session. --try and --wait limit that too.
func (r *run) begin(log clog.Logger) (err error) {
	ctx := r.cmd.Context()
	if r.limited() {
		r.giveUp = time.Now().Add(max(r.wait, leastPatience))
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, r.giveUp)
		defer cancel()
	}
	r.session, err = r.connectWithin(ctx, r.cmd, log, 0) // watchWait has a limit of time
	return err
}

// limited reports whether the wait for the lock has a limit.
func (r *run) limited() bool { return r.try || r.cmd.Flags().Changed("wait") }

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

// nameHolder completes the error of a lock that is taken: the library itself looks for the holder only
// for a moment.
func (r *run) nameHolder(err error) {
	var e *dlock.Error
	if !errors.Is(err, dlock.ErrLockHeldByOther) || !errors.As(err, &e) || e.Holder != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.cmd.Context(), 2*leastPatience)
	defer cancel()
	e.Holder, e.Waiters = others(r.inspect(ctx, r.key))
	if !r.knowsWaiters() {
		e.Waiters = -1
	}
}

// others is a holder, and how many wait. Our own claim may still be stored: the client withdraws it in the background.
func others(claims []dlock.Claim) (who *dlock.Claim, waiters int) {
	for i := range claims {
		c := &claims[i]
		switch {
		case isOwn(c):
		case c.Phase == dlock.PhaseQueued:
			waiters++
		case who == nil:
			who = c
		}
	}
	return who, waiters
}

func (r *run) options() []dlock.LockOption {
	opts := []dlock.LockOption{
		dlock.WithTTL(r.ttl),
		dlock.WithInfo(r.info()),
	}
	if r.minHold > 0 {
		opts = append(opts, dlock.WithMinHold(r.minHold))
	}
	switch {
	case r.try:
		opts = append(opts, dlock.WithWait(0))
	case r.limited():
		opts = append(opts, dlock.WithWait(min(r.wait, max(time.Until(r.giveUp), 0))))
	}
	switch {
	case r.shared:
		opts = append(opts, dlock.WithShared())
	case r.permits > 0:
		opts = append(opts, dlock.WithPermits(r.permits))
	}
	return opts
}

func (r *run) info() dlock.Info {
	return dlock.Info{Owner: infoText(userName(r.getenv)), Purpose: infoText(filepath.Base(r.args[0]))}
}

// userName is who runs the command, for those who wait. cron and containers may not say who that is.
func userName(getenv func(string) string) string {
	for _, name := range []string{"USER", "LOGNAME", "USERNAME"} {
		if u := getenv(name); u != "" && len(u) < 100 {
			return u
		}
	}
	return operator()
}

// infoText is the name of a user or a file, which may be any bytes, as a lock can store it: printable,
// and at most 256 bytes.
func infoText(name string) string { return cut(safe(name), 64) }

// environment is ours and what the command finds in addition. Our passwords are not
// for it, nor is what an outer dlock run has set: of two variables with one name, many programs take
// the first.
func (r *run) environment() []string {
	own := map[string]string{
		"DLOCK_KEY":          r.key,
		"DLOCK_TOKEN":        strconv.FormatInt(r.guard.Token(), 10),
		"DLOCK_BACKEND_NAME": r.Name,
	}
	if u := withoutPassword(r.getenv("DLOCK_BACKEND")); u != "" {
		own["DLOCK_BACKEND"] = u
	}
	return replaceVariables(os.Environ(), own, runtime.GOOS == "windows", "DLOCK_BACKEND", "DLOCK_PASSWORD", tokenEnv)
}
