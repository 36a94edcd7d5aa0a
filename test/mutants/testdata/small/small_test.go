package small

import (
	"os"
	"testing"
)

func TestAdd(t *testing.T) {
	if Add(1, 2) != 3 || Add(90, 20) != 100 {
		t.Error("wrong sum")
	}
}

func TestCount(t *testing.T) {
	if Count(3) != 3 {
		t.Error("wrong count")
	}
}

func TestNothing(*testing.T) {}

// TestScripted fails when told to. The file that SMALL_OUTCOMES names has a letter for each
// run to come: f to fail, p to pass. The last letter stays.
func TestScripted(t *testing.T) {
	Double(1)
	file := os.Getenv("SMALL_OUTCOMES")
	if file == "" {
		return
	}
	outcomes, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcomes) > 1 {
		err = os.WriteFile(file, outcomes[1:], 0o600)
		if err != nil {
			t.Fatal(err)
		}
	}
	if outcomes[0] == 'f' {
		t.Error("told to fail")
	}
}
