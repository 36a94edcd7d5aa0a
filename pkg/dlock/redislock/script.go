package redislock

import (
	_ "embed"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

type command = redisnode.Command

var (
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/renew_held.lua
	renewHeldLua string
	//go:embed lua/renew_queue.lua
	renewQueueLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/look.lua
	lookLua string
)

var (
	acquireScript    = redisnode.NewScript(acquireLua, commonLua)
	renewHeldScript  = redisnode.NewScript(renewHeldLua, commonLua)
	renewQueueScript = redisnode.NewScript(renewQueueLua, commonLua)
	releaseScript    = redisnode.NewScript(releaseLua, commonLua)
	lookScript       = redisnode.NewScript(lookLua, commonLua)
	inspectScript    = redisnode.NewScript(inspectLua, commonLua)
)
