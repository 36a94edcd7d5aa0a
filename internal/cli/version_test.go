package cli

import "testing"

// A version says everything that is known, and nothing else.
func TestVersionLine(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]versionOf{
		"dlock (devel), go1.26.8, linux/amd64": {Version: "(devel)", Go: "go1.26.8", Platform: "linux/amd64"},
		"dlock v0.1.0 (abc), go1.26.8, linux/amd64": {
			Version: "v0.1.0", Revision: "abc", Go: "go1.26.8", Platform: "linux/amd64",
		},
		"dlock v0.1.0 (abc, 2026-11-17T11:11:03Z, modified), go1.26.8, windows/arm64": {
			Version: "v0.1.0", Revision: "abc", Time: "2026-11-17T11:11:03Z", Modified: true, Go: "go1.26.8", Platform: "windows/arm64",
		},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
