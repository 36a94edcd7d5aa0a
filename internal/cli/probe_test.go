package cli

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A script that takes the only lock while doctor tries it does not make the file unsafe.
func TestDoctorOfAUsedFile(t *testing.T) {
	t.Parallel()
	store := filelock.NewFile(filepath.Join(t.TempDir(), "locks", "k.lock"))
	open := func() *dlock.Client {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store), dlock.WithAdmin())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	script, tries := open(), 0
	b := &Backend{Name: "file", OnlyKey: "k", Opener: store}
	b.Forget = func(ctx context.Context, key string) error { // after each try
		if tries++; tries == 3 {
			_, err := script.TryAcquire(ctx, key)
			return err
		}
		return nil
	}
	d := &diagnosis{session: &session{Backend: b, client: open()}, ttl: defaultRunTTL}
	if findings, err := d.try(t.Context()); !errors.Is(err, dlock.ErrLockHeldByOther) || tries != 4 {
		t.Errorf("after %d tries: %v, %v", tries, findings, err)
	}
}

// A TTL is judged by what locks take: by the median for safety, and by the slowest for pauses.
func TestDoctorJudgesTheTTL(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]dlock.Level{
		4 * time.Second: dlock.LevelOK, 3900 * time.Millisecond: dlock.LevelWarning, 900 * time.Millisecond: dlock.LevelWarning, 899 * time.Millisecond: dlock.LevelUnsafe,
	} {
		p := &probe{diagnosis: &diagnosis{ttl: ttl}, leased: true, took: []time.Duration{400 * time.Millisecond, 300 * time.Millisecond, 200 * time.Millisecond}}
		if f := p.latency(); f.Level != want || (f.Fix == "") != (want == dlock.LevelOK) {
			t.Errorf("%v: %+v", ttl, f)
		}
	}
}
