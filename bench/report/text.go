package report

import (
	"fmt"
	"strings"
)

// Text is the goals, for a terminal.
func (r *Report) Text() string {
	b := &strings.Builder{}
	for _, f := range r.Figures {
		sign := "met   "
		if !f.OK {
			sign = "MISSED"
		}
		fmt.Fprintf(b, "%s  %-84s %9.4g  (%.4g–%.4g), goal %s\n", sign, f.Name, f.Value, f.Min, f.Max, f.Goal)
	}
	for i := range r.Troubles {
		t := &r.Troubles[i]
		fmt.Fprintf(b, "note    %s, %s, %s: %s\n", t.Peer, t.Workload, t.Case, describe(&t.Trouble))
	}
	if len(r.Missing) > 0 {
		fmt.Fprintf(b, "%d goals were not measured in this run\n", len(r.Missing))
	}
	return b.String()
}
