package filelock

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func TestRecord(t *testing.T) {
	for _, want := range []record{
		{},
		{waited: 1754000000000001, first: 1754000000000000, fence: 1754000000000002, since: 1754000000000003, mode: driver.Permit, limit: most},
		{fence: mostFence},
	} {
		text := want.appendTo(appendMark(nil, want.waited, want.first))
		if len(text) != headSize {
			t.Errorf("%d bytes, want %d", len(text), headSize)
		}
		if got, err := parse(text); err != nil || got != want {
			t.Errorf("%q is read as %+v, %v", text, got, err)
		}
		for i := 1; i < len(text); i++ {
			if i == markSize {
				continue // the mark of a waiter alone
			}
			if _, err := parse(text[:i]); !errors.Is(err, ErrNotALock) {
				t.Errorf("the first %d bytes: %v", i, err)
			}
		}
	}
	for name, text := range map[string]string{
		"other data": "#!/bin/sh\n", "another version": "dlock 2 0000000000000000 0000000000000000\n",
		"no such mode":  string((&record{mode: 3}).appendTo(appendMark(nil, 0, 0))),
		"too large":     string(bytes.Replace((&record{}).appendTo(appendMark(nil, 0, 0)), []byte("\n0000000000000000000"), []byte("\n9999999999999999999"), 1)),
		"not a number":  "dlock 1 000000000000000x 0000000000000000\n",
		"no line break": "dlock 1 0000000000000000 0000000000000000 ",
	} {
		if rec, err := parse([]byte(text)); !errors.Is(err, ErrNotALock) {
			t.Errorf("%s is read as %+v, %v", name, rec, err)
		}
	}
}

// Tokens increase whatever the clock does.
func TestFence(t *testing.T) {
	now := time.UnixMicro(1754000000000000)
	var r record
	if token := r.next(0, now); token != now.UnixMicro() || r.fence != token {
		t.Errorf("token %d, %+v", token, r)
	}
	if token := r.next(100, now.Add(-time.Hour)); token != now.UnixMicro()+1 || r.fence != token+99 {
		t.Errorf("token %d, %+v", token, r)
	}
	if token := r.next(1, now); token != now.UnixMicro()+101 {
		t.Errorf("token %d, %+v", token, r)
	}
	if token := r.next(1, now.Add(time.Second)); token != now.Add(time.Second).UnixMicro() {
		t.Errorf("token %d, %+v", token, r)
	}
}

func TestAwaited(t *testing.T) {
	now := time.UnixMicro(1754000000000000)
	at := func(d time.Duration) int64 { return now.Add(d).UnixMicro() }
	for _, tc := range []struct {
		name    string
		rec     record
		arrived int64
		want    bool
	}{
		{"no waiter", record{since: at(-time.Second)}, at(0), false},
		{"one came before", record{since: at(-9), waited: at(-5), first: at(-time.Minute)}, at(0), true},
		{"we wait", record{since: at(-9), waited: at(-5), first: at(-time.Minute)}, at(-time.Minute), false},
		{"one came after", record{since: at(-9), waited: at(-5), first: at(-3)}, at(-time.Millisecond), false},
		{"it was refused by an earlier holder", record{since: at(-time.Millisecond), waited: at(-time.Second / 2), first: at(-time.Second)}, at(0), false},
		{"the clock was set back", record{since: at(-9), waited: at(time.Hour), first: at(-time.Minute)}, at(0), false},
		{"it was not seen for long", record{since: at(-time.Hour), waited: at(-2 * time.Second), first: at(-time.Minute)}, at(0), false},
	} {
		if got := tc.rec.awaited(tc.arrived, now); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(magic))
	f.Add((&record{fence: 1}).appendTo(appendMark(nil, 2, 3)))
	f.Fuzz(func(t *testing.T, text []byte) {
		rec, err := parse(text)
		if err != nil || len(text) < headSize {
			return
		}
		if again := rec.appendTo(appendMark(nil, rec.waited, rec.first)); !bytes.Equal(again, text[:headSize]) {
			t.Errorf("%q is written as %q", text[:headSize], again)
		}
	})
}

// A waiter that gives up removes its own mark, and leaves that of another waiter.
func TestUnmark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	dir, err := New(path).openDirectory(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFile(dir.fd)
	fd, err := openFile(dir, "k.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer closeFile(fd)
	c := claim{main: file{fd: fd}, arrived: 2}
	for _, test := range []struct{ mark, want record }{
		{record{waited: 3, first: 1}, record{waited: 3, first: 1}}, {record{waited: 3, first: 2}, record{}},
	} {
		if err := writeAt(fd, test.mark.appendTo(appendMark(nil, test.mark.waited, test.mark.first)), 0); err != nil {
			t.Fatal(err)
		}
		c.unmark()
		if rec, _, err := read(fd); err != nil || rec != test.want {
			t.Errorf("%+v became %+v, %v", test.mark, rec, err)
		}
	}
}
