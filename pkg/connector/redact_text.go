package connector

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// secretForms returns the forms in which a password may be repeated: unchanged, quoted as %q writes
// it, with line ends as Redis writes them in an error, and with leading and trailing space trimmed.
func secretForms(secrets []string) []string {
	var forms []string
	for _, s := range secrets {
		quoted := strconv.Quote(s)
		oneLine := strings.NewReplacer("\r", " ", "\n", " ").Replace(s)
		forms = append(forms, s, quoted[1:len(quoted)-1], oneLine, strings.TrimSpace(s), strings.TrimSpace(oneLine))
	}
	slices.Sort(forms)
	return slices.DeleteFunc(slices.Compact(forms), func(s string) bool { return s == "" })
}

// Redis repeats the arguments of an unknown command, and truncates them.
var repeatedArgs = regexp.MustCompile(`(?s)(with args beginning with:).+$`)

// knownPhrases are fixed phrases of Redis and the first words of its answers. Locks and connectors
// use them to interpret an answer.
var knownPhrases = func() *regexp.Regexp {
	var quoted []string
	for _, p := range []string{
		"WRONGPASS invalid username-password pair or user is disabled.",
		"NOAUTH Authentication required.",
		"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used" +
			" to authenticate the client and select the RESP protocol version at the same time",
		"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
		"ERR Client sent AUTH, but no password is set",
		"ERR invalid password",
		"ERR unknown command",
		"ERR max number of clients reached",
		"ERR This instance has cluster support disabled",
		"ERR DB index is out of range",
		"DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.",
		"NOPERM this user has no permissions to run the",
		"has no permissions to run the",
		"has no permissions to access one of the keys used as arguments",
		"has no permissions to access one of the channels used as arguments",
		"The user executing the script can't run this command or subcommand",
		"LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN The cluster is down",
		"CLUSTERDOWN Hash slot not served",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"READONLY You can't write against a read only replica.",
		"NOREPLICAS Not enough good replicas to write.",
		"NOSCRIPT No matching script. Please use EVAL.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"CROSSSLOT Keys in request don't hash to the same slot",
		"BUSY Redis is busy running a script.",
		"MISCONF Redis is configured to save RDB snapshots, but it",
		"failed to authenticate: ",
		"redis: can't parse ",
	} {
		quoted = append(quoted, regexp.QuoteMeta(p))
	}
	const codes = "^(?:ERR|WRONGPASS|NOAUTH|NOPERM|DENIED|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|READONLY|NOREPLICAS|NOSCRIPT|OOM|" +
		"WRONGTYPE|CROSSSLOT|BUSY|MISCONF|EXECABORT|UNKILLABLE|NOTBUSY) "
	return regexp.MustCompile(strings.Join(quoted, "|") + "|" + codes)
}()

// cutFrom is how many bytes of a long password are enough to hide them: a text may be truncated
// within the password.
const cutFrom = 8

// hide hides passwords in a text. The known phrases stay.
func (l *link) hide(text string) string {
	if len(l.secrets) == 0 {
		return text
	}
	text = repeatedArgs.ReplaceAllString(text, "$1 "+hidden)
	secret := make([]bool, len(text)) // by byte
	found := false
	mark := func(at, length int) {
		found = true
		for i := at; i < at+length; i++ {
			secret[i] = true
		}
	}
	phrases := knownPhrases.FindAllStringIndex(text, -1)
	for _, form := range l.secrets {
		start := form[:min(len(form), cutFrom)]
		for at := next(text, start, 0); at >= 0; at = next(text, start, at+1) {
			length := commonPrefix(text[at:], form)
			if !within(phrases, at, at+length) {
				mark(at, length)
			}
		}
	}
	if !found {
		return text
	}
	return replaceMarked(text, secret)
}

// next returns the first place of s in text at or after from, or -1.
func next(text, s string, from int) int {
	if from > len(text) {
		return -1
	}
	i := strings.Index(text[from:], s)
	if i < 0 {
		return -1
	}
	return from + i
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func within(intervals [][]int, from, to int) bool {
	return slices.ContainsFunc(intervals, func(i []int) bool { return i[0] <= from && to <= i[1] })
}

// replaceMarked replaces each run of marked bytes.
func replaceMarked(text string, marked []bool) string {
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !marked[i]:
			b.WriteByte(text[i])
		case i == 0 || !marked[i-1]:
			b.WriteString(hidden)
		}
	}
	return b.String()
}
