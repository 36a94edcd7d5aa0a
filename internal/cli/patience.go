package cli

import "time"

// How long a call may keep its user waiting. Tests of the command lengthen all of them, unless they test one.
var (
	leastPatience  = patient(time.Second)     // connecting may take at least this long, even with --try
	reportAfter    = patient(time.Second)     // a wait is worth a word
	completeWithin = patient(time.Second)     // a user has pressed a key, and waits
	sendTimeout    = patient(2 * time.Second) // a run is over, and somebody waits for its end
)
