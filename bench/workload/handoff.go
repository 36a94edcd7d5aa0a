package workload

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

var handOff = Workload{
	Name: "handoff", Title: "handoff",
	About:  "Eight clients at one key with a section of 2 ms, so that all others wait in peace when the key is given back: from the call of Unlock to the next holder.",
	Charts: []string{HandOffP50, HandOffP99}, Floors: hotFloors,
	run: func(ctx context.Context, r *Run) error {
		all, err := r.subjects(ctx, "handoff", r.some(waiting), &r.site.Direct, func(peer.Info) int { return handOffClients })
		defer func() { pack(all) }()
		if err != nil {
			return err
		}
		if err := r.warmUp(ctx, "handoff", all, func(peer.Info) int { return handOffClients }); err != nil {
			return err
		}
		return r.rounds(ctx, "handoff", all, func(round int, s *subject) error {
			return r.hotRound(ctx, "handoff", round, s, HandOffSetting, r.Plan.HandOff)
		})
	},
}

const handOffClients = 8

// HandOffSetting is the one case of the handoff.
var HandOffSetting = setting{handOffClients, 2 * time.Millisecond}

// HandOffCase is its name.
func HandOffCase() string { return HotCase(HandOffSetting.clients, HandOffSetting.section) }
