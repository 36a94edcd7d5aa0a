package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The permissions that a user of locks needs in addition to the commands of the scripts.
var (
	aclPush    = strings.Fields("+publish +subscribe +pubsub|numsub")
	aclAdmin   = strings.Fields("+scan +getrange") // Admin.List
	aclCheck   = strings.Fields("+info +ping")     // Client.Check, and the warning at the first use
	aclCluster = strings.Fields("+spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub +cluster|slots +cluster|shards +cluster|info +command")
)

// minimalACL returns the commands of the scripts as ACL rules.
func minimalACL(t testing.TB) []string {
	t.Helper()
	rules := []string{"-@all", "+eval", "+evalsha"}
	for _, op := range []string{"acquire", "renew", "release", "inspect", "look"} {
		for _, command := range scriptCommands(op) {
			if command != "pubsub" { // of which subcommands are enough
				rules = append(rules, "+"+command)
			}
		}
	}
	slices.Sort(rules[1:])
	return slices.Compact(rules)
}

// keyPatterns returns the key patterns that locks below a prefix use.
func keyPatterns(prefix string) []string {
	return []string{"~" + prefix + "*", "~{" + prefix + "*", "~dlock:token*"}
}

func setUser(t testing.TB, admin redis.Cmdable, name string, rules ...[]string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", name, "on", "resetkeys", "resetchannels"}
	for _, r := range slices.Concat(rules...) {
		args = append(args, r)
	}
	check(t, admin.(interface {
		Do(ctx context.Context, args ...any) *redis.Cmd
	}).Do(t.Context(), args...).Err())
}

// The whole suite, by users without any other permission.
func TestMinimalACL(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	first := dialRedis(t, server.Addr())
	check(t, first.Do(t.Context(), "ACL", "SETUSER", "root", "on", ">rootpw", "~*", "&*", "+@all").Err())
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "root", Password: "rootpw", ContextTimeoutEnabled: true})
	defer admin.Close()
	rules := slices.Concat(minimalACL(t), aclPush, aclAdmin, aclCheck, keyPatterns("suite:"), []string{"&dlock:*"})
	t.Log("ACL SETUSER locks on >secret resetkeys resetchannels", strings.Join(rules, " "))
	setUser(t, admin, "locks", []string{">secret"}, rules)
	setUser(t, admin, "default", rules) // as which the child processes of the suite log in
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "locks", Password: "secret", ContextTimeoutEnabled: true})
	defer client.Close()
	for _, forbidden := range []*redis.Cmd{
		client.Do(t.Context(), "FLUSHALL"), client.Do(t.Context(), "SET", "stranger", "1"), client.Do(t.Context(), "CONFIG", "GET", "*"),
		client.Do(t.Context(), "PUBLISH", "stranger", "1"), client.Do(t.Context(), "KEYS", "*"),
	} {
		if err := forbidden.Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Fatalf("%v: %v: the user is not restricted", forbidden.Args(), err)
		}
	}
	check(t, admin.Do(t.Context(), "ACL", "LOG", "RESET").Err())
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		prefix := "suite:" + t.Name() + ":"
		return &drivertest.Harness{
			Caps: caps, Prefix: prefix, TTL: 4 * time.Second, WaiterTTL: time.Minute, Slack: 4 * time.Second, Grants: testenv.UnderStress(300, 2000),
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := redislock.New(client).Open(o)
				check(t, err)
				return d
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childAddrs+"="+server.Addr(), "REDISLOCK_TEST_PREFIX="+prefix)
				return cmd
			},
		}
	}, drivertest.AtOnce())
	c := locksOn(t, redislock.New(client), dlock.Config{Prefix: "suite:"})
	if _, err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	log, err := admin.ACLLog(t.Context(), 100).Result()
	check(t, err)
	for _, entry := range log {
		if !strings.HasPrefix(entry.Object, "client") { // which go-redis tries by itself
			t.Errorf("%s was denied %s (%s)", entry.Username, entry.Object, entry.Reason)
		}
	}
}

// A user of another database than 0 needs one more permission.
func TestMinimalACLOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	admin := dialRedis(t, server.Addr())
	rules := slices.Concat([]string{">secret"}, minimalACL(t), aclPush, aclCheck, keyPatterns("p:"), []string{"&dlock:*"})
	setUser(t, admin, "locks", rules)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), DB: 1, Username: "locks", Password: "secret", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	c := locksOn(t, redislock.New(client), dlock.Config{Prefix: "p:"})
	_, err := answered(t, func() (*dlock.Guard, error) { return c.TryAcquire(t.Context(), "k") })
	wantError(t, err, dlock.ErrDenied)
	setUser(t, admin, "locks", rules, []string{"+select"})
	g := acquire(t, c, "k")
	waiter := startWait(t, c, "k")
	unlock(t, g)
	unlock(t, granted(t, waiter, time.Minute).guard)
}

// The permissions of a user on a cluster.
func TestMinimalACLOnACluster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	rules := slices.Concat([]string{">secret"}, minimalACL(t), aclAdmin, aclCheck, aclCluster, keyPatterns("p:"), []string{"&{*}dlock:*"})
	for _, node := range cl.Nodes() {
		setUser(t, dialRedis(t, node.Addr()), "locks", rules)
	}
	open := func() *dlock.Client {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), Username: "locks", Password: "secret", ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		return locksOn(t, redislock.New(client), dlock.Config{Prefix: "p:", DefaultTTL: 30 * time.Second, RenewInterval: 300 * time.Millisecond})
	}
	a, b := open(), open()
	for i := range 6 {
		node := cl.Nodes()[i%3]
		stored := keyOn(t, cl, node, fmt.Sprintf("p:k%d-", i))
		key, direct := strings.TrimPrefix(stored, "p:"), dialRedis(t, node.Addr())
		g := acquire(t, a, key)
		ch := startWait(t, b, key)
		testenv.Eventually(t, time.Minute, "the waiter has a channel", func() bool { // a first subscription takes a busy machine long
			records := direct.HVals(t.Context(), waitersOf(stored)).Val()
			return len(records) == 1 && strings.Contains(records[0], "dlock:")
		})
		before := countCalls(t, direct, "spublish")
		unlock(t, g)
		unlock(t, granted(t, ch, time.Minute).guard)
		if countCalls(t, direct, "spublish") == before { // which is called for a subscriber only
			t.Errorf("the grant of %q was not pushed", key)
		}
	}
	g := acquire(t, a, "renewed")
	awaitConfirmed(t, 2, g)
	alive(t, g)
	admin, err := a.Admin()
	check(t, err)
	if keys, _, err := admin.ListPage(t.Context(), "", "", 10); err != nil || len(keys) != 1 {
		t.Errorf("%q, %v", keys, err)
	}
	_, err = a.Check(t.Context())
	check(t, err)
	for _, node := range cl.Nodes() {
		log, err := dialRedis(t, node.Addr()).ACLLog(t.Context(), 100).Result()
		check(t, err)
		for _, entry := range log {
			if !strings.HasPrefix(entry.Object, "client") {
				t.Errorf("%s was denied %s (%s)", entry.Username, entry.Object, entry.Reason)
			}
		}
	}
}

// Logs and errors contain no claim ID and no password, whatever goes wrong.
func TestNoSecretsInLogsAndErrors(t *testing.T) {
	t.Parallel()
	const password = "swordfish-4711"
	server := testenv.Redis(t)
	check(t, dialRedis(t, server.Addr()).ConfigSet(t.Context(), "requirepass", password).Err())
	proxy := testenv.Proxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), Password: password, ContextTimeoutEnabled: true})
	defer client.Close()
	said := newSaid()
	withLog := dlock.WithLogger(clog.FromSlog(said.logger))
	c := locksOn(t, redislock.New(client), dlock.Config{DefaultTTL: 300 * time.Millisecond, MaxRetries: 2}, withLog)
	other := locksOn(t, redislock.New(client), dlock.Config{DefaultTTL: 300 * time.Millisecond}, withLog)

	faults := &randomFaults{ids: map[string]bool{}, rng: rand.New(rand.NewPCG(2, 2)), acquire: redislock.Scripts("acquire")}
	proxy.Intercept(faults.next)
	for i := range testenv.UnderStress(300, 10_000) {
		said.callEverything(t, c, other, i)
	}
	wrong := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: password + "x", ContextTimeoutEnabled: true})
	defer wrong.Close()
	stranger := locksOn(t, redislock.New(wrong), dlock.Config{}, withLog)
	_, err := answered(t, func() (bool, error) { return stranger.TryLock(t.Context(), "k") })
	wantError(t, err, dlock.ErrDenied)
	said.add(err)
	proxy.Heal()
	said.add(c.Close())
	said.add(other.Close())

	faults.mu.Lock()
	defer faults.mu.Unlock()
	all := said.text.String()
	if len(faults.ids) < 100 || faults.n < 50 || said.errs < 50 || !strings.Contains(all, "level=") {
		t.Fatalf("%d IDs, %d faults, %d errors, %d bytes: the test does not bite", len(faults.ids), faults.n, said.errs, len(all))
	}
	noSecretsIn(t, all, password, faults.ids)
}

// randomFaults disturb every third call of a script. They know the IDs of claims.
type randomFaults struct {
	mu      sync.Mutex
	rng     *rand.Rand
	acquire map[string]string // by hash
	ids     map[string]bool
	n       int
}

func (f *randomFaults) next(cmd []string) faultproxy.Action {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cmd[0] != "EVALSHA" {
		return faultproxy.Forward
	}
	if f.acquire[cmd[1]] != "" {
		if keys, err := strconv.Atoi(cmd[2]); err == nil {
			f.ids[cmd[3+keys]] = true
		}
	}
	f.n++
	switch f.rng.IntN(12) {
	case 0:
		return faultproxy.DropReply
	case 1:
		return faultproxy.ReplyError(transientReplies[f.rng.IntN(len(transientReplies))])
	case 2:
		return faultproxy.ReplyError("ERR odd")
	case 3:
		return faultproxy.ReplyError("NOPERM no")
	}
	f.n--
	return faultproxy.Forward
}

// A said collects all that users can read: logs, errors, and claims as administrators see them.
type said struct {
	text   *textBuffer
	logger *slog.Logger
	errs   int
}

func newSaid() *said {
	text := new(textBuffer)
	return &said{text: text, logger: slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))}
}

// add records an error in every format, and the holder that it names.
func (s *said) add(err error) {
	if err == nil {
		return
	}
	s.errs++
	fmt.Fprintf(s.text, "%v %+v %#v\n", err, err, err.Error())
	var e *dlock.Error
	if errors.As(err, &e) && e.Holder != nil {
		fmt.Fprintf(s.text, "%v %+v\n", e.Holder, *e.Holder)
		s.logger.Warn("held", "by", *e.Holder)
	}
}

// callEverything is round i of the calls that a user and an administrator can make.
func (s *said) callEverything(t *testing.T, c, other *dlock.Client, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	key := fmt.Sprint("k", i%3)
	g, err := c.TryAcquire(ctx, key)
	s.add(err)
	_, err = other.TryAcquire(ctx, key, dlock.WithMaxHold(time.Millisecond))
	s.add(err)
	if i%20 == 0 {
		_, err = other.Acquire(ctx, key, dlock.WithWait(20*time.Millisecond))
		s.add(err)
	}
	if a, err := c.Admin(); err == nil {
		claims, err := a.Inspect(ctx, key)
		s.add(err)
		fmt.Fprintf(s.text, "%v %+v\n", claims, claims)
		if g != nil && i%7 == 0 {
			s.add(a.Evict(ctx, key, g.Token()))
		}
		_, _, err = a.ListPage(ctx, "", "", 10)
		s.add(err)
	}
	if g != nil {
		s.add(g.Extend(ctx, 200*time.Millisecond))
		s.add(g.Unlock(ctx))
		s.add(g.Unlock(ctx))
		fmt.Fprintf(s.text, "%v\n", context.Cause(g.Context()))
	}
}

// noSecretsIn asserts that a text contains neither the password, nor one of these IDs, nor anything
// that looks like an ID.
func noSecretsIn(t *testing.T, all, password string, ids map[string]bool) {
	t.Helper()
	for id := range ids {
		if len(id) != 32 {
			t.Fatalf("%q is no ID", id)
		}
		if at := strings.Index(all, id); at >= 0 {
			t.Fatalf("an ID leaks: %s", all[max(0, at-200):at+40])
		}
	}
	if found := regexp.MustCompile(`(^|[^0-9a-f])[0-9a-f]{32}([^0-9a-f]|$)`).FindString(all); found != "" {
		t.Errorf("something like an ID: %q", found)
	}
	if at := strings.Index(all, password); at >= 0 {
		t.Errorf("the password leaks: %s", all[max(0, at-200):at+40])
	}
}

// hostileNames returns names that must be refused or are hard to store, then random ones.
func hostileNames(n int) []string {
	names := append([]string{
		"", strings.Repeat("x", 64<<10), strings.Repeat("x", 1025), "\x00", "a\x00b", "a\r\nb", "a\nb", "\x7f", "\u0085", "\x01", "k\x01y",
		"\xff", "a\xc3", "\xed\xa0\x80", "*3\r\n$3\r\nSET\r\n", "p*[x]:a", "{p*[x]:a}",
	}, drivertest.NastyKeys()...)
	letters := []rune("ab/{}:.*?[]\\%$ -_éа日🔒\u202e\x00\x01\n\r\u0085")
	rng := rand.New(rand.NewPCG(5, 5))
	for len(names) < n {
		raw := make([]rune, 1+rng.IntN(12))
		for i := range raw {
			raw[i] = letters[rng.IntN(len(letters))]
		}
		name := string(raw)
		if rng.IntN(10) == 0 {
			name = name[:rng.IntN(len(name))+1] // may cut a character in two
		}
		names = append(names, name)
	}
	return names
}

// Every name is either always refused or works exactly; nothing is stored outside the prefix.
func TestNamesAreRefusedOrExact(t *testing.T) {
	t.Parallel()
	const prefix = "p*[x]:"
	server := testenv.Redis(t)
	direct := dialRedis(t, server.Addr())
	c := locksOn(t, redislock.New(dialRedis(t, server.Addr())), dlock.Config{Prefix: prefix, DefaultTTL: time.Minute})
	other := locksOn(t, redislock.New(dialRedis(t, server.Addr())), dlock.Config{Prefix: prefix, DefaultTTL: time.Minute})
	held, refused := map[string]*dlock.Guard{}, 0
	for _, name := range hostileNames(testenv.UnderStress(3000, 50_000)) {
		if held[name] != nil {
			continue
		}
		valid := name != "" && len(name) <= 1024 && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		if !valid {
			_, err := c.TryAcquire(t.Context(), name)
			wantError(t, err, dlock.ErrInvalidKey)
			_, again := other.TryLock(t.Context(), name)
			wantError(t, again, dlock.ErrInvalidKey)
			refused++
			continue
		}
		held[name] = acquire(t, c, name)
	}
	if refused < 100 || len(held) < 500 {
		t.Fatalf("%d refused, %d taken", refused, len(held))
	}
	storedExactly(t, direct, prefix, held)
	listed := listAll(t, other)
	for name := range listed {
		if held[name] == nil {
			t.Errorf("%q is listed, and is not held", name)
		}
	}
	for name, g := range held {
		if !listed[name] || g.Key() != name {
			t.Errorf("%q is not listed, or called %q", name, g.Key())
		}
		wantBusy(t, other, name)
		unlock(t, g)
	}
	if left := leftovers(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// storedExactly asserts that each lock is stored under its name, and that only its sibling keys are
// stored next to it.
func storedExactly(t *testing.T, direct *redis.Client, prefix string, held map[string]*dlock.Guard) {
	t.Helper()
	for name := range held {
		if n := direct.Exists(t.Context(), prefix+name).Val(); n != 1 {
			t.Fatalf("%q is not stored under its name", name)
		}
	}
	for _, k := range allKeys(t, direct) {
		bare, isLock := strings.CutPrefix(k, prefix)
		switch {
		case isLock && held[bare] != nil:
		case strings.Contains(k, "\x01") && (isLock || strings.HasPrefix(k, "{"+prefix)):
		case strings.HasPrefix(k, "dlock:token\x01"): // which all prefixes share
		default:
			t.Errorf("%q is stored", k)
		}
	}
}

// listAll returns what an administrator sees, page by page.
func listAll(t *testing.T, c *dlock.Client) map[string]bool {
	t.Helper()
	admin, err := c.Admin()
	check(t, err)
	listed := map[string]bool{}
	for cursor, first := "", true; first || cursor != ""; first = false {
		keys, next, err := admin.ListPage(t.Context(), "", cursor, 500)
		check(t, err)
		for _, k := range keys {
			listed[k] = true
		}
		cursor = next
	}
	return listed
}

// A putter stores data that is not a lock at a key.
type putter func(to redis.Cmdable, key string) error

// A key that holds other data is refused at once with ErrNotALock, and the data is not touched,
// even if locks already wait there.
func TestOtherDataIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := dialRedis(t, server.Addr())
	c := locksAt(t, server.Addr())
	ctx := t.Context()
	for kind, put := range map[string]putter{
		"list": func(to redis.Cmdable, k string) error { return to.RPush(ctx, k, "a", "b").Err() },
		"hash": func(to redis.Cmdable, k string) error { return to.HSet(ctx, k, "f", "v").Err() },
		"set":  func(to redis.Cmdable, k string) error { return to.SAdd(ctx, k, "m").Err() },
		"zset": func(to redis.Cmdable, k string) error { return to.ZAdd(ctx, k, redis.Z{Score: 1, Member: "m"}).Err() },
		"stream": func(to redis.Cmdable, k string) error {
			return to.XAdd(ctx, &redis.XAddArgs{Stream: k, Values: []string{"f", "v"}}).Err()
		},
	} {
		refusedWhereDataIs(t, c, direct, kind, put)
		refusedWhereDataCame(t, server, c, kind+":taken", put)
	}
	// A string is a lock of a plain client, whatever its value is.
	check(t, direct.Set(ctx, "string", "plain", 0).Err())
	wantBusy(t, c, "string")
	if v := direct.Get(ctx, "string").Val(); v != "plain" {
		t.Errorf("the string is %q", v)
	}

	refusedAtSiblings(t, server, c)
}

// untouched returns an assertion that a key has its current value and does not expire.
func untouched(t *testing.T, direct *redis.Client, key string) func() {
	t.Helper()
	before := direct.Dump(t.Context(), key).Val()
	return func() {
		t.Helper()
		if now := direct.Dump(t.Context(), key).Val(); now != before || direct.PTTL(t.Context(), key).Val() != -1 {
			t.Errorf("%s: the data were touched", key)
		}
	}
}

func refusedWhereDataIs(t *testing.T, c *dlock.Client, direct *redis.Client, key string, put putter) {
	t.Helper()
	check(t, put(direct, key))
	same := untouched(t, direct, key)
	_, err := answered(t, func() (*dlock.Guard, error) { return c.TryAcquire(t.Context(), key) })
	wantError(t, err, redislock.ErrNotALock)
	began := time.Now()
	_, err = c.Acquire(t.Context(), key)
	wantError(t, err, redislock.ErrNotALock)
	if d := time.Since(began); d > testenv.UnderStress(10*time.Second, time.Second) {
		t.Errorf("%s: refused after %v", key, d)
	}
	same()
}

// refusedWhereDataCame overwrites a lock that is held and waited for.
func refusedWhereDataCame(t *testing.T, server *servers.Redis, c *dlock.Client, key string, put putter) {
	t.Helper()
	ctx, direct := t.Context(), dialRedis(t, server.Addr())
	g := acquire(t, c, key, dlock.WithTTL(time.Minute))
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := c.Acquire(waiting, key, dlock.WithTTL(time.Minute)); ended <- err }()
	testenv.Eventually(t, time.Minute, "one waits", func() bool { return countQueued(t, c, key) == 1 })
	_, err := direct.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Del(ctx, key)
		return put(tx, key)
	})
	check(t, err)
	same := untouched(t, direct, key)
	other := locksAt(t, server.Addr())
	_, err = answered(t, func() (*dlock.Guard, error) { return other.TryAcquire(ctx, key) })
	wantError(t, err, redislock.ErrNotALock)
	if err := g.Unlock(ctx); err == nil {
		t.Errorf("%s: an Unlock of what was overwritten succeeded", key)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Errorf("%s: the waiter got a lock", key)
	}
	same()
}

// refusedAtSiblings stores data at the names of the keys next to a lock.
func refusedAtSiblings(t *testing.T, server *servers.Redis, c *dlock.Client) {
	t.Helper()
	ctx, direct := t.Context(), dialRedis(t, server.Addr())
	for i := range 2 {
		name, sibling := fmt.Sprint("sibling", i), ""
		g, err := answered(t, func() (*dlock.Guard, error) { // each time another lock: one without an answer may be stored
			name += "."
			keys, _ := redislock.Keys("", name)
			sibling = keys[2+i]
			check(t, direct.SAdd(ctx, sibling, "a").Err())
			return c.TryAcquire(ctx, name)
		})
		if err == nil { // no call has looked there yet
			_, err = locksAt(t, server.Addr()).Acquire(ctx, name, dlock.WithWait(time.Minute))
			_ = g.Unlock(ctx)
		}
		wantError(t, err, redislock.ErrNotALock)
		if n := direct.SCard(ctx, sibling).Val(); n != 1 {
			t.Errorf("sibling %d was touched", i)
		}
		check(t, direct.Del(ctx, sibling, name).Err())
	}
}
