package redislock

import (
	_ "embed"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

type command = redisnode.Command

var (
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/token.lua
	tokenLua string
	//go:embed lua/submit.lua
	submitLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/acquire_joint.lua
	acquireJointLua string
	//go:embed lua/acquire_batch.lua
	acquireBatchLua string
	//go:embed lua/renew_held.lua
	renewHeldLua string
	//go:embed lua/renew_joint.lua
	renewJointLua string
	//go:embed lua/renew_queue.lua
	renewQueueLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/release_batch.lua
	releaseBatchLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/look.lua
	lookLua string
)

var (
	acquireScript      = newScript(acquireLua)
	acquireJointScript = newScript(acquireJointLua)
	acquireBatchScript = newScript(acquireBatchLua)
	renewHeldScript    = newScript(renewHeldLua)
	renewJointScript   = newScript(renewJointLua)
	renewQueueScript   = newScript(renewQueueLua)
	releaseScript      = newScript(releaseLua)
	releaseBatchScript = newScript(releaseBatchLua)
	lookScript         = newScript(lookLua)
	inspectScript      = newScript(inspectLua)
)

// newScript also inserts token.lua into every path that takes a token: a function would slow down
// the frequent paths.
func newScript(source string) *redisnode.Script {
	source = strings.ReplaceAll(source, "--@submit\n", submitLua)
	common := strings.ReplaceAll(commonLua, "  --@token\n", tokenLua)
	return redisnode.NewScript(strings.ReplaceAll(source, "  --@token\n", tokenLua), common)
}
