package redlock

import (
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Listens reports on how many nodes a driver knows that it is subscribed to all that it needs to hear of a key.
func Listens(d driver.Driver, key string) int {
	r := d.(*redDriver)
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(r.listeners(r.channel), r.listeners(channelPrefix+r.prefix+key))
}

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
