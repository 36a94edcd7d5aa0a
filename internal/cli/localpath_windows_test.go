package cli

import "testing"

// A URL of a file has a slash before the drive.
func TestLocalPath(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"/C:/locks": `C:\locks`, "/c:/a b/k.lock": `c:\a b\k.lock`, "/locks": `\locks`, "//host/share/locks": `\\host\share\locks`,
	} {
		if got := localPath(url); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
