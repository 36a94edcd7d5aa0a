package redlock

import "github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"

// Scripts maps the names of the scripts to their hashes, and Sources to their text.
var (
	Scripts = map[string]string{}
	Sources = map[string]string{}
)

func init() {
	for name, s := range map[string]*redisnode.Script{
		"acquire": acquireScript, "confirm": confirmScript, "renew": renewScript, "wait": waitScript, "release": releaseScript, "inspect": inspectScript,
	} {
		Scripts[name], Sources[name] = s.Hash, s.Source
	}
}
