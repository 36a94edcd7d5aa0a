package redislock

import (
	"errors"
	"testing"
	"time"
)

// Processes of all versions share these names.
func TestStoredNamesStay(t *testing.T) {
	for i, want := range []string{"dlock:token\x017", "dlock:token\x01{" + slotTag(15495) + "}"} {
		if got := counterOf("a", i == 1); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if one := slotTag(slotOf("1")); one != "1" {
		t.Errorf("the slot of 1 has the tag %q", one)
	}
	for slot := range slots {
		if got := slotOf("{" + slotTag(slot) + "}"); got != slot {
			t.Fatalf("the tag of slot %d is in slot %d", slot, got)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", 1: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Minute: "60000"} {
		if got := millis(d); got != want {
			t.Errorf("%v are %s ms, want %s", d, got, want)
		}
	}
}

// A value that ends after the ID is not an answer, and neither is an unknown word.
func TestTruncatedAnswers(t *testing.T) {
	for _, text := range []string{claimA.ID, claimA.ID + ".", claimA.ID + ". ", "odd " + claimA.ID + " 5", "held " + claimA.ID, "held " + claimA.ID + " "} {
		if a, err := parseAnswer(text, claimA, time.Now()); !errors.Is(err, ErrUnexpectedReply) {
			t.Errorf("%q: %+v, %v", text, a, err)
		}
	}
}
