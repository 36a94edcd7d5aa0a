package mutant

import (
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

type caughtBy = []string

// Oracles by which several mutants are caught.
var (
	exclusion  = caughtBy{"overlap", "history"}
	validity   = caughtBy{"late-loss", "overlap", "history"}
	leftovers  = caughtBy{"ghost", "lingering"}
	tokenOrder = caughtBy{"fence"}
)

// All are the mutants.
var All = []Mutant{
	{Name: "unlock-without-compare", Wrong: "a release deletes the lock, whosever it is", Topology: schedule.Single, By: exclusion, change: newNaive(quirks{blindRelease: true})},
	{Name: "look-then-take", Wrong: "looks whether the lock is free, then takes it", Topology: schedule.Single, By: exclusion, change: newNaive(quirks{lookFirst: true})},
	{Name: "no-expiry", Wrong: "the lock has no expiry", Topology: schedule.Single, Needs: []schedule.Kind{schedule.WorkerKill}, By: caughtBy{"ghost", "idle"}, change: newNaive(quirks{noExpiry: true})},
	{Name: "expiry-in-a-second-call", Wrong: "the expiry is set by a second call, a while after SET NX", Topology: schedule.Single, Needs: []schedule.Kind{schedule.WorkerKill}, By: caughtBy{"ghost", "idle"}, change: newNaive(quirks{twoSteps: true})},
	{Name: "client-clock", Wrong: "the expiry is a time of the client's clock (PXAT)", Topology: schedule.Single, By: validity, change: newNaive(quirks{absolute: true})},
	{Name: "wrong-unit", Wrong: "the TTL is sent in the wrong unit", Topology: schedule.Single, By: validity, change: newNaive(quirks{wrongUnit: true})},
	{Name: "queue-without-heartbeat", Wrong: "a dead waiter stays at the head of the queue", Topology: schedule.Single, Needs: []schedule.Kind{schedule.WorkerKill}, Early: true, By: caughtBy{"idle"}, change: newNaive(quirks{deadHeads: true})},
	{Name: "renew-without-compare", Wrong: "a renewal lengthens the lock, whosever it is", Topology: schedule.Single, Mode: schedule.Beyond, Needs: []schedule.Kind{schedule.KeyDelete, schedule.ServerEmpty}, By: caughtBy{"late-loss"}, change: newNaive(quirks{blindRenew: true})},

	{Name: "deadline-from-receipt", Wrong: "validity counts from the answer, not from the call", Topology: schedule.Single, Needs: []schedule.Kind{schedule.LagHole}, By: validity, change: wrap(fromReceipt)},
	{Name: "no-deadline", Wrong: "the holder has no deadline of its own", Topology: schedule.Single, Needs: []schedule.Kind{schedule.BlackHole, schedule.LagHole}, Longer: true, By: validity, change: wrap(noDeadline)},
	{Name: "no-deadline-etcd", Wrong: "the same on etcd", Topology: schedule.Etcd1, Needs: []schedule.Kind{schedule.BlackHole, schedule.LagHole}, Longer: true, By: validity, change: wrap(noDeadline)},
	{Name: "failed-renewal-counts", Wrong: "a renewal that failed counts as one that succeeded", Topology: schedule.Single, Needs: []schedule.Kind{schedule.BlackHole, schedule.LagHole}, Longer: true, By: validity, change: wrap(optimist)},
	{Name: "never-renews", Wrong: "renewals are not sent, and their answers made up", Topology: schedule.Single, By: validity, change: wrap(neverRenews)},
	{Name: "ignores-loss", Wrong: "\"not yours\" is taken for \"ask again\"", Topology: schedule.Single, Mode: schedule.Beyond, Needs: []schedule.Kind{schedule.KeyDelete, schedule.ServerEmpty}, By: caughtBy{"late-loss"}, change: wrap(ignoresLoss)},
	{Name: "renewal-stops-on-error", Wrong: "no renewal after the first error", Topology: schedule.Single, Needs: []schedule.Kind{schedule.ServerPause}, By: caughtBy{"false-loss"}, change: wrap(givesUp)},
	{Name: "error-is-loss", Wrong: "a renewal without an answer is taken for a loss", Topology: schedule.Single, Needs: []schedule.Kind{schedule.ServerPause}, By: caughtBy{"false-loss"}, change: wrap(errorIsLoss)},

	{Name: "no-cleanup", Wrong: "attempts without an answer are forgotten", Topology: schedule.Single, Needs: []schedule.Kind{schedule.DropReplies, schedule.Cut, schedule.ReplyHole}, By: leftovers, change: wrap(noCleanup)},
	{Name: "no-cleanup-etcd", Wrong: "the same on etcd", Topology: schedule.Etcd1, By: leftovers, change: wrap(noCleanup)},
	{Name: "no-tombstone", Wrong: "cleanup does not reckon with attempts that are still on their way", Topology: schedule.Single, Needs: []schedule.Kind{schedule.LateCalls}, By: leftovers, change: wrap(noTombstone)},
	{Name: "caller-context", Wrong: "cleanup runs under the caller's context, which has ended", Topology: schedule.Single, By: leftovers, change: wrap(deadContext)},
	{Name: "id-per-attempt", Wrong: "every attempt has an ID of its own", Topology: schedule.Single, Needs: []schedule.Kind{schedule.DropReplies, schedule.Cut, schedule.ReplyHole}, By: leftovers, change: wrap(idPerAttempt)},
	{Name: "false-busy", Wrong: "no answer is taken for \"taken\"", Topology: schedule.Single, Needs: []schedule.Kind{schedule.DropReplies, schedule.Cut, schedule.ReplyHole}, By: leftovers, change: wrap(falseBusy)},
	{Name: "lazy-release", Wrong: "a release is not sent", Topology: schedule.Single, By: leftovers, change: wrap(lazyRelease)},
	{Name: "releases-once", Wrong: "a release that failed is not repeated", Topology: schedule.Single, Needs: []schedule.Kind{schedule.Cut, schedule.DropReplies, schedule.ClientKill, schedule.BlackHole}, By: leftovers, change: wrap(releasesOnce)},
	{Name: "hints-only", Wrong: "waiters wait for a message and never ask", Topology: schedule.Single, Needs: []schedule.Kind{schedule.Mute}, Early: true, By: caughtBy{"idle"}, change: wrap(hintsOnly)},

	{Name: "fence-by-incr", Wrong: "the token is a counter that a restart loses", Topology: schedule.Single, Mode: schedule.Beyond, Needs: []schedule.Kind{schedule.ServerEmpty}, By: tokenOrder, change: wrap(tokens(counter))},
	{Name: "fence-per-process", Wrong: "the token is counted in the process", Topology: schedule.Single, By: tokenOrder, change: wrap(tokens(perProcess()))},
	{Name: "fence-in-seconds", Wrong: "the token is the time in seconds", Topology: schedule.Single, By: tokenOrder, change: wrap(tokens(seconds))},
	{Name: "fence-of-clients", Wrong: "the token is the time of the client", Topology: schedule.Single, By: tokenOrder, change: wrap(tokens(skewed))},

	{Name: "same-session", Wrong: "one session for all claims of a process (etcd)", Topology: schedule.Etcd1, By: exclusion, change: newSameSession},
	{Name: "deletes-the-line", Wrong: "a release deletes the claims of all (etcd)", Topology: schedule.Etcd1, By: validity, change: wrap(wholeLine)},
	{Name: "redlock-one-node", Wrong: "one server is asked in place of a majority", Topology: schedule.Redlock3, By: exclusion, change: func(_ driver.Opener, s Servers) driver.Opener {
		return redislock.New(s.Nodes[s.Worker%len(s.Nodes)])
	}},

	{Name: "believes-any-push", Wrong: "a waiter takes the push for another of its process for its own", Topology: schedule.Single, By: exclusion, change: wrap(believesAnyPush)},
	{Name: "one-call-at-a-time", Wrong: "all calls wait for one that a stalled master does not answer", Topology: schedule.Cluster, Needs: []schedule.Kind{schedule.MasterStall}, By: caughtBy{"other-masters", "overrun"}, change: wrap(oneAtATime)},
	{Name: "renewal-never-shortens", Wrong: "a renewal leaves an end that is further ahead", Topology: schedule.Single, Needs: []schedule.Kind{schedule.ClockBack}, By: caughtBy{"overlong"}, change: newNaive(quirks{neverShortens: true})},
	{Name: "token-by-counter", Wrong: "the token is the stored one plus one, whatever the time", Topology: schedule.Single, Needs: []schedule.Kind{schedule.SiblingDelete}, By: tokenOrder, change: newNaive(quirks{counts: true})},
	{Name: "redlock-releases-one-node", Wrong: "a release goes to one server", Topology: schedule.Redlock3, By: leftovers, change: wrap(releasesOneNode)},
	{Name: "no-deadline-redlock", Wrong: "the holder has no deadline of its own (redlock)", Topology: schedule.Redlock3, Needs: []schedule.Kind{schedule.BlackHole, schedule.LagHole}, Longer: true, Whole: true, By: validity, change: wrap(noDeadline)},

	{Name: "batch-grants-all", Wrong: "of several keys, one that another holds is called granted", Topology: schedule.Single, By: exclusion, change: wrap(batchGrantsAll)},
	{Name: "batch-forgets", Wrong: "of several keys, those that were granted are forgotten if one was not", Topology: schedule.Single, By: leftovers, change: wrap(batchForgets)},
	{Name: "batch-never-releases", Wrong: "the release of several keys is not sent", Topology: schedule.Single, By: leftovers, change: wrap(batchNeverReleases)},
}

// Control is the naive lock without a mistake: the lab must let it pass, or mutants
// that are made of it prove nothing.
var Control = Mutant{Name: "control", Wrong: "nothing", Topology: schedule.Single, change: newNaive(quirks{})}
