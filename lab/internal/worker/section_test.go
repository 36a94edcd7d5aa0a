package worker

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lentLock is a holding that ends when the test wants it to.
type lentLock struct{ ctx context.Context }

func (l lentLock) Context() context.Context { return l.ctx }

func (l lentLock) Extend(context.Context, time.Duration) error { return nil }

// delayWrites forwards the lines of one worker to the store at path. It reports a write on arrived, and forwards it
// once forward is closed.
func delayWrites(t *testing.T, path string, arrived chan<- struct{}, forward <-chan struct{}) string {
	t.Helper()
	front := path + "-front"
	l, err := net.Listen("unix", front)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		back, err := net.Dial("unix", path)
		if err != nil {
			return
		}
		defer back.Close()
		in, answers := bufio.NewScanner(conn), bufio.NewReader(back)
		for in.Scan() {
			if strings.HasPrefix(in.Text(), "write") {
				close(arrived)
				<-forward
			}
			fmt.Fprintln(back, in.Text())
			answer, err := answers.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(conn, answer)
		}
	}()
	return front
}

// A lock ends while the last write of its section is on its way: the store knows for how long it was.
func TestWriteThatArrivesAfterItsSection(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	registers, err := store.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer registers.Close()
	arrived, forward := make(chan struct{}), make(chan struct{})
	log, err := event.Open(filepath.Join(dir, "events"), "w")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	section := func(socket string, held context.Context, token int64, attempt string) {
		s, err := store.Dial(socket)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		w := &worker{log: log, store: s}
		one := task{key: "k", attempt: attempt}
		w.section(context.Background(), held, &session{}, one, lentLock{held}, part{task: one, token: token})
	}
	front := delayWrites(t, path, arrived, forward)
	held, lose := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		section(front, held, 1, "late")
	}()
	<-arrived
	sent := mono.Now()
	lose(&dlock.Error{Key: "k", Err: dlock.ErrOwnershipLost})
	section(path, context.Background(), 2, "next")
	forwarded := mono.Now()
	close(forward)
	<-done
	lost := registers.Lost()
	if len(lost) != 1 || lost[0].Overwritten.Attempt != "next" {
		t.Fatalf("lost %+v", lost)
	}
	if w := lost[0].Write; w.Attempt != "late" || w.Sent == 0 || w.Sent > sent || w.At < forwarded {
		t.Errorf("a write that was sent before %d and forwarded at %d is kept as %+v", sent, forwarded, w)
	}
}
