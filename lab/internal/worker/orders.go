// Package worker is a process of the lab that locks, works and unlocks, and logs
// what it does.
package worker

import (
	"encoding/json"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// Orders are everything that a worker process is told.
type Orders struct {
	Name     string         `json:"name"`     // of this process, used once in a trial
	Backend  Backend        `json:"backend"`  // how to reach the servers
	Store    string         `json:"store"`    // socket of the store
	Log      string         `json:"log"`      // file of events
	Seed     uint64         `json:"seed"`     // for what it does
	TTL      time.Duration  `json:"ttl"`      // of most locks
	Mode     schedule.Mode  `json:"mode"`     // beyond: half of the holders are careless
	Setup    schedule.Setup `json:"setup"`    // of the Client
	Started  int64          `json:"started"`  // when the trial began
	Mutant   string         `json:"mutant"`   // a broken backend in place of ours
	Position int            `json:"position"` // which of the workers this is
	Rest     time.Duration  `json:"rest"`     // at most, between two locks of a hand
}

// A Backend says how to reach the servers of a topology.
type Backend struct {
	Kind  string   `json:"kind"` // single, sentinel, cluster, redlock or etcd
	Addrs []string `json:"addrs"`
	// User and Password are empty where the servers have no users.
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	// Routing is that of a cluster client; see schedule.Setup.
	Routing string `json:"routing,omitempty"`
	// Via are proxies by the addresses of servers that announce themselves.
	Via map[string]string `json:"via,omitempty"`
}

// Prefix begins all keys of the lab.
const Prefix = "lab:"

// Encode makes an argument of orders.
func (o Orders) Encode() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers cannot fail
	}
	return string(text)
}

// Decode is the inverse of Encode.
func Decode(text string) (o Orders, err error) {
	err = json.Unmarshal([]byte(text), &o)
	return o, err
}
