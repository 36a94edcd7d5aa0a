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
		"ERR The user executing the script can't run this command or subcommand":                    driver.ErrDenied,
		"NOPERM ACL failure in script: User u has no permissions to run the 'get' command":          driver.ErrDenied,
		"@user_script: 31: -WRONGTYPE Operation against a key holding the wrong kind of value":      redisnode.ErrNotALock,
		"OOM command not allowed when used memory > 'maxmemory'. script: 0123, on @user_script:40.": redisnode.ErrOutOfMemory,
	} {
		err := redisnode.ReplyError(text)
		if !errors.Is(err, want) || strings.Contains(err.Error(), "@user_script:40") {
			t.Errorf("%q is %v", text, err)
		}
	}
}
