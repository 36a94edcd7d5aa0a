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

// TestScripted fails when told to, and TestScriptedCompany, which runs after it.
func TestScripted(t *testing.T) { scripted(t, "SMALL_OUTCOMES") }

func TestScriptedCompany(t *testing.T) { scripted(t, "SMALL_OUTCOMES_OF_COMPANY") }

// scripted fails when told to. The file that the variable names has a letter for each run to
// come: f to fail, p to pass, and g to panic in another goroutine, so that the output does not
// name the test. The last letter stays.
func scripted(t *testing.T, variable string) {
	t.Helper()
	Double(1)
	file := os.Getenv(variable)
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
	switch outcomes[0] {
	case 'f':
		t.Error("told to fail")
	case 'g':
		go panic("told to panic")
		select {}
	}
}
