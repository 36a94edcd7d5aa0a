package schedule

import "fmt"

// A Setup is what differs between the trials of a topology besides their faults: how
// workers are configured, and the users as which they reach the servers.
type Setup struct {
	Batch     int    // Config.LocalBatch
	Reentrant bool   // Config.EnableReentrant
	Reopens   bool   // workers close their Client now and then, and open another
	Routing   string // of a cluster client
	Rights    string // of the users that workers log in as
}

// How cluster clients choose among a master and its replicas for what they take for a read.
const (
	ToMasters = ""
	ReadOnly  = "read-only"
	ByLatency = "by-latency"
	Randomly  = "randomly"
)

// The rights of workers.
const (
	AllRights = ""
	// FewRights are those that the documentation of the backend names, and no others.
	FewRights = "few"
	// NoChannels are these without any channel, for half of the workers.
	NoChannels = "no-channels"
)

// SetupFor is a function of the seed, as the schedule is. What measures times has no setup.
func SetupFor(seed uint64, topology string, mode Mode) (s Setup) {
	if mode == Kills || mode == Calm {
		return s
	}
	s.Reentrant = seed%2 == 1
	s.Reopens = seed%4 == 3
	if topology == Etcd1 || topology == Etcd3 {
		if seed%5 == 0 {
			s.Rights = FewRights
		}
		return s
	}
	switch seed % 6 {
	case 3:
		s.Rights = FewRights
	case 5:
		s.Rights = NoChannels
	}
	if topology == Redlock3 || topology == Redlock5 {
		return s
	}
	if seed%4 == 0 {
		s.Batch = 4
	}
	if topology == Cluster {
		s.Routing = []string{ToMasters, ReadOnly, ByLatency, Randomly}[seed/2%4]
	}
	return s
}

// Plain is the setup for a backend that is not ours: it may need other rights, and cannot
// reserve tokens.
func (s Setup) Plain() Setup {
	s.Batch, s.Rights, s.Routing = 0, AllRights, ToMasters
	return s
}

func (s Setup) String() string {
	text := fmt.Sprintf("LocalBatch %d", s.Batch)
	if s.Reentrant {
		text += ", re-entrant"
	}
	if s.Reopens {
		text += ", Clients are reopened"
	}
	if s.Routing != ToMasters {
		text += ", routing " + s.Routing
	}
	if s.Rights != AllRights {
		text += ", rights " + s.Rights
	}
	return text
}
