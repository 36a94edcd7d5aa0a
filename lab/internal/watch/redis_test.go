package watch

import "testing"

type ends []string

func (*ends) begin() []string                      { return nil }
func (*ends) changed(string)                       {}
func (*ends) has(string, int64)                    {}
func (*ends) interrupted()                         {}
func (e *ends) ended(key string, _ hold, _ string) { *e = append(*e, key) }

// The end of a lock is heard also if its key has a hash tag; that of the keys next to it is not.
func TestLocksAreToldFromTheirSiblings(t *testing.T) {
	var heard ends
	l := &subscription{to: &heard, locks: map[string]*lock{}}
	for _, key := range []string{"lab:quick-0-0", "lab:several-{3}-1", "lab:several-{3}-1\x01\x01y"} {
		l.change(key, "del")
	}
	if len(heard) != 2 || heard[0] != "lab:quick-0-0" || heard[1] != "lab:several-{3}-1" {
		t.Errorf("%q", heard)
	}
}
