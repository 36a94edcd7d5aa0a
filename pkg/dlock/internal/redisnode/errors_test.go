package redisnode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// An error that a script returns as text means the same as one that the server returns.
func TestReplyError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"ERR ACL failure in script: User u has no permissions to run the 'get' command script: 0123, on @user_script:40.": driver.ErrDenied,
		"ERR The user executing the script can't run this command or subcommand":                                          driver.ErrDenied,
		"@user_script: 31: -WRONGTYPE Operation against a key holding the wrong kind of value":                            redisnode.ErrNotALock,
		"OOM command not allowed when used memory > 'maxmemory'. script: 0123, on @user_script:40.":                       redisnode.ErrOutOfMemory,
	} {
		err := redisnode.ReplyError(text)
		said, _, _ := strings.Cut(text, " script: 0123")
		if !errors.Is(err, want) || !strings.HasSuffix(err.Error(), said) {
			t.Errorf("%q is %v", text, err)
		}
	}
}

// A denial is about a key if the same command may be permitted for other keys. Servers say so in several ways.
func TestDeniedKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"NOPERM this user has no permissions to access one of the keys used as arguments":                            true,
		"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments": true,
		"NOPERM No permissions to access a key":                                                                      true,
		"ERR ACL failure in script: No permissions to access a key script: 0123, on @user_script:40.":                true,
		"ERR ACL failure in script: User u has no permissions to access the 'a' key":                                 true,
		"ERR ACL failure in script: User u has no permissions to run the 'get' command":                              false,
		"NOPERM User u has no permissions to access the 'a' key":                                                     true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                           false,
		"NOPERM User key has no permissions to run the 'evalsha' command":                                            false,
		"NOPERM this user has no permissions to access one of the channels used as arguments":                        false,
		"ERR The user executing the script can't run this command or subcommand":                                     false,
		"WRONGPASS invalid username-password pair or user is disabled.":                                              false,
		"CROSSSLOT Keys in request don't hash to the same slot, or one of the keys is elsewhere":                     false,
		"ERR one of the keys": false,
	} {
		if err := redisnode.ReplyError(text); redisnode.DeniedKey(err) != want {
			t.Errorf("%q, which is %v: %v", text, err, !want)
		}
	}
	if redisnode.DeniedKey(nil) || redisnode.DeniedKey(driver.ErrDenied) {
		t.Error("it is so without a reply")
	}
}
