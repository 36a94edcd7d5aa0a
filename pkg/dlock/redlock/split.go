package redlock

import (
	"context"
	"slices"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A server refuses a call for many claims if its user may not access one of their keys. The claims are then renewed in
// smaller groups, until those that are denied are alone: the others must not be lost with them. From then on, those are
// renewed apart from the others, so that the search is not repeated.

// splitInto is how many groups a refused one becomes: more would cost more calls, and fewer more round trips.
const splitInto = 8

// A group is some neighbors of a batch, from the first to before the end.
type group struct {
	first, end int
	whole      bool // the node does not know the script
}

// split returns the parts of a group that was refused. Claims of which each is known to be denied are separated at once.
func (g group) split(apart bool) (parts []group) {
	size := (g.end - g.first + splitInto - 1) / splitInto
	if apart {
		size = 1
	}
	for first := g.first; first < g.end; first += size {
		parts = append(parts, group{first: first, end: min(first+size, g.end)})
	}
	return parts
}

// separate returns the claims that are renewed together, and those that are renewed apart from them.
func (r *renewal) separate(held []int) (together, apart []int) {
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	for _, i := range held {
		if r.claims[i].apart {
			apart = append(apart, i)
		}
	}
	if len(apart) > 0 {
		held = slices.DeleteFunc(held, func(i int) bool { return r.claims[i].apart })
	}
	return held, apart
}

// renewInGroups renews claims on a node that has refused to renew them together, with one pipeline for all groups of a size.
// The answer is that of a single call, with an error for each claim that was not renewed.
func (h *holding) renewInGroups(n *node) answer {
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	reply := make([]any, 1+len(h.batch))
	for groups := (group{end: len(h.batch)}).split(h.apart); len(groups) > 0; {
		cmds, err := h.sendGroups(ctx, n, groups)
		if err != nil {
			return answer{node: n, err: err}
		}
		var next []group
		for i, g := range groups {
			a := n.judge(cmds[i], cmds[i].Err(), h.echo(g))
			switch {
			case redisnode.IsNoScript(cmds[i].Err()) && !g.whole:
				next = append(next, group{g.first, g.end, true})
			case g.end-g.first > 1 && h.driver.ctx.Err() == nil && redisnode.DeniedKey(a.err):
				next = append(next, g.split(false)...)
			default:
				g.fill(reply[1:], a)
			}
		}
		groups = next
	}
	return answer{node: n, reply: reply}
}

// fill stores the answer for a group among those for a batch.
func (g group) fill(answers []any, a answer) {
	if a.err == nil && len(a.reply) != 1+g.end-g.first {
		a.err = ErrUnexpectedReply
	}
	for k := g.first; k < g.end; k++ {
		if a.err != nil {
			answers[k] = a.err
		} else {
			answers[k] = a.reply[1+k-g.first]
		}
	}
}

// sendGroups makes one round trip. It fails if a hook panicked.
func (h *holding) sendGroups(ctx context.Context, n *node, groups []group) (cmds []*redisnode.Command, panicked error) {
	defer recovered(&panicked)
	pipe := n.client.Pipeline()
	for _, g := range groups {
		cmd := h.command(ctx, g)
		if g.whole {
			cmd = cmd.Whole(ctx)
		}
		cmds = append(cmds, cmd)
		_ = pipe.Process(ctx, cmd)
	}
	redisnode.Execute(ctx, pipe)
	return cmds, nil
}

// echo is what the answer for a group begins with.
func (h *holding) echo(g group) string { return h.refs[h.batch[g.first]].ID }

// command renews the claims of a group.
func (h *holding) command(ctx context.Context, g group) *redisnode.Command {
	args := h.args
	if g.first > 0 || g.end < len(h.batch) {
		args = append([]any{h.echo(g)}, h.args[1+5*g.first:1+5*g.end]...)
	}
	return renewScript.Command(ctx, h.keys[2*g.first:2*g.end], args...)
}

// keepApart records that a claim was refused because of its key, if it was.
func (h *holding) keepApart(k int, err error) {
	if redisnode.DeniedKey(err) {
		h.polls[k].denied = true
		h.driver.mu.Lock()
		defer h.driver.mu.Unlock()
		h.claims[h.batch[k]].apart = true
	}
}
