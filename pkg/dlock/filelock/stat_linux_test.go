package filelock

import (
	"os"
	"path/filepath"
	"testing"
)

// A failed stat is an error. It must not be treated as a removed file: a held lock would count as
// lost.
func TestLookAtFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	st, err := lookAt(fd)
	if err != nil || st.removed || st.odd {
		t.Errorf("an open file: %+v, %v", st, err)
	}
	err = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	st, err = lookAt(-1)
	if err == nil {
		t.Errorf("no file: %+v", st)
	}
}
