package redlock

import "github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"

// Scripts maps the names of the scripts to their hashes.
var Scripts = map[string]string{}

func init() {
	for name, s := range map[string]*redisnode.Script{
		"acquire": acquireScript, "confirm": confirmScript, "renew": renewScript, "wait": waitScript, "release": releaseScript, "inspect": inspectScript,
	} {
		Scripts[name] = s.Hash
	}
}
