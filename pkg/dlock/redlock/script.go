package redlock

import (
	_ "embed"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

var (
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/confirm.lua
	confirmLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/wait.lua
	waitLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/inspect.lua
	inspectLua string
)

var (
	acquireScript = redisnode.NewScript(acquireLua, commonLua)
	confirmScript = redisnode.NewScript(confirmLua, commonLua)
	renewScript   = redisnode.NewScript(renewLua, commonLua)
	waitScript    = redisnode.NewScript(waitLua, commonLua)
	releaseScript = redisnode.NewScript(releaseLua, commonLua)
	inspectScript = redisnode.NewScript(inspectLua, commonLua)
)
