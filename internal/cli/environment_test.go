package cli

import (
	"slices"
	"testing"
)

// The command does not get the password. Windows finds a variable whatever the case of its name is.
func TestReplaceVariables(t *testing.T) {
	t.Parallel()
	env := []string{"PATH=/bin", "DLOCK_PASSWORD=a", "DLOCK_UI_TOKEN=c", "Dlock_Password=b", "DLOCK_KEY=old", "dlock_key=older", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`}
	for anyCase, want := range map[bool][]string{
		false: {"PATH=/bin", "Dlock_Password=b", "dlock_key=older", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`, "DLOCK_KEY=new"},
		true:  {"PATH=/bin", "DLOCK_PASSWORD_FILE=f", `=C:=C:\x`, "DLOCK_KEY=new"},
	} {
		if got := replaceVariables(env, map[string]string{"DLOCK_KEY": "new"}, anyCase, "DLOCK_PASSWORD", "DLOCK_UI_TOKEN"); !slices.Equal(got, want) {
			t.Errorf("any case %t: %q, want %q", anyCase, got, want)
		}
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                  "",
		"secret":                            "",
		"redis://u:sec/ret@h":               "",
		"file:///a:b@c/d":                   "file:///a:b@c/d",
		"redis://h:1/2?prefix=p:":           "redis://h:1/2?prefix=p:",
		"redis://u@h":                       "redis://u@h",
		"redis://:sec@ret@h:1/2?prefix=p:":  "redis://h:1/2?prefix=p:",
		"REDISS://u:s:e%2Fcret@h,[::1]:3/m": "REDISS://u@h,[::1]:3/m",
	} {
		if got := withoutPassword(raw); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}
