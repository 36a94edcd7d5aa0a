package cli

import (
	"slices"
	"testing"
)

// The command does not get the password. Windows finds a variable whatever the case of its name is.
func TestReplaceVariables(t *testing.T) {
	t.Parallel()
	env := []string{"PATH=/bin", "DLOCK_PASSWORD=a", "Dlock_Password=b", "DLOCK_KEY=old", "dlock_key=older", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`}
	for anyCase, want := range map[bool][]string{
		false: {"PATH=/bin", "Dlock_Password=b", "dlock_key=older", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`, "DLOCK_KEY=new"},
		true:  {"PATH=/bin", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`, "DLOCK_KEY=new"},
	} {
		if got := replaceVariables(env, map[string]string{"DLOCK_KEY": "new"}, "DLOCK_PASSWORD", anyCase); !slices.Equal(got, want) {
			t.Errorf("any case %t: %q, want %q", anyCase, got, want)
		}
	}
}
