package dlock_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"testing/quick"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// What an Admin shows can be read from its JSON, without a loss.
func TestClaimIsReadBack(t *testing.T) {
	phases := []dlock.Phase{dlock.PhaseHeld, dlock.PhaseQueued, ""}
	modes := []dlock.Mode{dlock.ModeExclusive, dlock.ModeShared, dlock.ModePermit, ""}
	same := func(c dlock.Claim) bool {
		c.Phase, c.Mode = phases[rand.IntN(len(phases))], modes[rand.IntN(len(modes))]
		text, err := json.Marshal(c)
		if err != nil {
			t.Log(err)
			return false
		}
		var back dlock.Claim
		if err := json.Unmarshal(text, &back); err != nil {
			t.Logf("%s: %v", text, err)
			return false
		}
		return back == c
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	if !same(dlock.Claim{Token: 3, LastToken: 7, Age: time.Minute}) || !same(dlock.Claim{}) {
		t.Error("a claim changes")
	}
}

// A field of a later version does not keep a claim from being read; a wrong one does.
func TestClaimFromBadJSON(t *testing.T) {
	var c dlock.Claim
	if err := json.Unmarshal([]byte(`{"phase":"held","token":5,"age":"1m","later":[1]}`), &c); err != nil || c.Token != 5 || c.Age != time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{
		`{"age":"soon"}`, `{"age":5}`, `{"remaining":true}`, `{"token":"5"}`, `{"token":1.5}`, `{"phase":1}`, `{"info":[]}`, `{"last_token":"x"}`, `[]`, `"held"`, `{`,
	} {
		if err := json.Unmarshal([]byte(text), &c); err == nil {
			t.Errorf("%s is read as %+v", text, c)
		}
	}
}

func TestFindingIsReadBack(t *testing.T) {
	same := func(f dlock.Finding) bool {
		text, err := json.Marshal(f)
		var back dlock.Finding
		return err == nil && json.Unmarshal(text, &back) == nil && back == f
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
}
