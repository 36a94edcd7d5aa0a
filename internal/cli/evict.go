package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// An eviction is one call of dlock evict.
type eviction struct {
	*app
	*locks
	key         string
	token       int64
	yes, asJSON bool
	log         clog.Logger
}

func (w *app) evictCommand() *cobra.Command {
	e := &eviction{app: w}
	cmd := &cobra.Command{
		Use:   "evict KEY",
		Short: "Take a lock away from its holder",
		Long: `Evict ends a lock that its holder does not give back, and hands it to the next.

The holder is not asked. It learns of it when it renews the lock, a third of its TTL
later at most, and until then goes on as if it had the lock. Where two at a time do
harm, end the holder itself first, or be sure that what it writes to compares tokens.

On a terminal, evict shows the holder and asks. Elsewhere, and with --json, it needs
--yes and the --token that was seen in ` + "`dlock show`" + `: if the lock has passed on
since, nothing is done. Who evicted whom is written to standard error, whether it
succeeded or not.

Locks that are files end with their process only; evict says which that is.

Exit codes: 0 evicted; 64 wrong arguments, or the backend cannot evict; 69 the backend
fails; 75 the lock is not held, or not with this token, or you said no.`,
		Example: `  dlock evict deploy
  dlock evict --yes --token "$(dlock show --json deploy | jq .token)" deploy`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e.key = args[0]
			return e.do(cmd)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&e.yes, "yes", "y", false, "do not ask; needs --token")
	f.Int64Var(&e.token, "token", 0, "the fencing token of the holder that was seen")
	f.BoolVar(&e.asJSON, "json", false, "write what was done to standard error as lines of JSON; needs --yes")
	return w.completesKey(cmd)
}

// check refuses to take away a lock that was not looked at.
func (e *eviction) check(cmd *cobra.Command) error {
	seen := cmd.Flags().Changed("token")
	asks := isTerminal(e.stdin) && isTerminal(e.stderr) && !e.asJSON
	switch {
	case seen && e.token < 1:
		return usage(cmd, "--token %d is below 1", e.token)
	case e.yes && !seen:
		return usage(cmd, "--yes needs --token: that of the holder that you have seen")
	case !e.yes && !asks:
		return usage(cmd, "there is no terminal to ask at: --yes and --token are needed")
	}
	return nil
}

func (e *eviction) do(cmd *cobra.Command) error {
	e.log = e.audit()
	asked := &claim{Token: e.token}
	if err := e.check(cmd); err != nil {
		if !e.asJSON { // nothing was tried
			return err
		}
		return e.failed("refused", asked, err)
	}
	s, err := e.connect(cmd, e.clientLog())
	if err != nil {
		return e.failed("failed", asked, err)
	}
	defer func() { _ = s.close() }()
	if e.locks, err = s.locks(); err != nil {
		return e.failed("failed", asked, err)
	}
	claims, err := e.Inspect(cmd.Context(), e.key)
	if err != nil {
		return e.failed("failed", asked, backendError(err))
	}
	k := e.of(e.key, claims)
	victim, err := e.choose(cmd, &k)
	if err != nil {
		return err
	}
	if err := lockreader.CannotEvict(dlock.BackendType(e.Name), e.key, victim.Token, victim.Info); err != nil {
		return e.failed("refused", &victim, &exit{ExitUsage, err})
	}
	if !e.yes && !e.confirmed(&k, &victim) {
		return exitWith(ExitNotAcquired, "nothing was changed")
	}
	return e.evict(cmd.Context(), &victim)
}

// audit is where evictions are written, by the engine and by us.
func (e *eviction) audit() clog.Logger {
	cfg := clog.Config{Level: "warn", Format: "text", Output: e.stderr}
	if e.asJSON {
		cfg.Format = "json"
	}
	if e.verbose {
		cfg.Level = "debug"
	}
	return clog.New(&cfg)
}

// clientLog is where the lock client writes. People read the same in our own line.
func (e *eviction) clientLog() clog.Logger {
	if e.asJSON || e.verbose {
		return e.log
	}
	return clog.Logger{}
}

// choose finds the holder that is meant.
func (e *eviction) choose(cmd *cobra.Command, k *lock) (claim, error) {
	if len(k.Holders) == 0 {
		return claim{}, e.refused(&claim{Token: e.token}, fmt.Errorf("%s is not held", safe(e.key)))
	}
	if e.token == 0 {
		if len(k.Holders) > 1 {
			return claim{}, usage(cmd, "%s has %d holders: say which with --token, as `dlock show` has them", safe(e.key), len(k.Holders))
		}
		return k.Holders[0], nil
	}
	for _, h := range k.Holders {
		if h.Token == e.token {
			return h, nil
		}
	}
	first := &k.Holders[0]
	return claim{}, e.refused(&claim{Token: e.token}, fmt.Errorf("%s is not held with token %d, but with %d by %s: nothing was changed",
		safe(e.key), e.token, first.Token, first.who()))
}

// confirmed shows what would be done, and asks.
func (e *eviction) confirmed(k *lock, victim *claim) bool {
	p, columns, gap := e.palette(e.stderr), room(e.stderr), " "
	if columnsOf(safe(e.key)+" is held by "+victim.who()) > columns {
		gap = "\n  "
	}
	lines := []string{
		fmt.Sprintf("%s is%sheld by %s", p.paint(strong, safe(e.key)), gap, p.paint(strong, victim.who())),
		"  " + wrap(fmt.Sprintf("%s, token %d, held for %s, lease left %s", k.mode(), victim.Token, victim.ageCell().text, victim.leftCell().text), 2, columns),
		"  " + wrap(next(k), 2, columns),
		wrap("The holder is not asked. It goes on until it notices, a third of its TTL later at most.", 0, columns),
	}
	fmt.Fprintf(e.stderr, "%s\nTake the lock away? [y/N] ", strings.Join(lines, "\n"))
	answer, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

func next(k *lock) string {
	if len(k.queue) == 0 {
		return "it has no waiters"
	}
	return fmt.Sprintf("%d waiting, the next is %s", len(k.queue), k.queue[0].who())
}

// evict does it. The token is compared by the backend, in the same step.
func (e *eviction) evict(ctx context.Context, victim *claim) error {
	ctx, cancel := context.WithTimeout(ctx, lockreader.Timeout)
	defer cancel()
	err := e.admin.Evict(ctx, e.key, victim.Token)
	switch {
	case err == nil:
		e.record("evicted", victim)
		e.showNext(ctx, victim)
		return nil
	case errors.Is(err, dlock.ErrLockNotHeld):
		return e.refused(victim, fmt.Errorf("%s has passed on meanwhile: nothing was changed", safe(e.key)))
	}
	return e.failed("unknown", victim, backendError(err))
}

// showNext shows people who has the lock now.
func (e *eviction) showNext(ctx context.Context, victim *claim) {
	if e.asJSON {
		return
	}
	line := "taken from " + victim.who()
	claims, err := e.Inspect(ctx, e.key)
	if err == nil {
		k := e.of(e.key, claims)
		switch len(k.Holders) {
		case 0:
			line += ", and free now"
		case 1:
			line += ", now held by " + k.Holders[0].who()
		default:
			line += fmt.Sprintf(", now held by %d others", len(k.Holders))
		}
	}
	e.say("%s", line)
}

// refused is for a lock that is not what was seen.
func (e *eviction) refused(victim *claim, err error) error {
	return e.failed("refused", victim, &exit{ExitNotAcquired, err})
}

// failed records an attempt that failed. What the record says is not said twice to a program.
func (e *eviction) failed(result string, victim *claim, err error) error {
	e.record(result, victim, clog.String("error", oneLine(err)))
	if e.asJSON {
		return &exit{codeOf(err), nil}
	}
	return err
}

// record is for the question, later, who it was.
func (e *eviction) record(result string, victim *claim, more ...clog.Field) {
	host, _ := os.Hostname()
	where := ""
	if e.locks != nil { // the backend was reached
		where = e.Where
	}
	fields := append(lockreader.EvictionRecord(result, where, e.key, victim.Token, victim.Info),
		clog.String("by", operator()), clog.Int("by_uid", os.Getuid()), clog.String("by_host", host))
	e.log.Warn(lockreader.EvictionMessage, append(fields, more...)...)
}

// operator is who runs this, as the system knows it; the environment could lie.
func operator() string {
	uid := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return "uid-" + uid
}
