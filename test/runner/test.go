package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// outputTime is how long a process that a program has left may keep its output open.
const outputTime = time.Minute

// test runs the programs, and prints what go test prints, one package after the other. All are run even if some fail.
func (o *options) test(ctx context.Context, all []*pkg, out io.Writer) error {
	next := make(chan *pkg)
	var mu sync.Mutex
	failed := 0
	var work sync.WaitGroup
	for range max(o.atOnce, 1) {
		work.Go(func() {
			for p := range next {
				text, err := o.runOne(p)
				mu.Lock()
				if err != nil {
					failed++
				}
				_, _ = out.Write(text)
				mu.Unlock()
			}
		})
	}
	for _, p := range all {
		if ctx.Err() != nil {
			break
		}
		select {
		case next <- p:
		case <-ctx.Done():
		}
	}
	close(next)
	work.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d packages failed", failed, len(all))
	}
	return nil
}

// runOne runs the tests of one package. A signal to this process is for its whole group, so that the program gets it too.
func (o *options) runOne(p *pkg) (text []byte, err error) {
	var out bytes.Buffer
	cmd := exec.Command(p.program, append([]string{"-test.timeout=" + o.limit.String(), "-test.paniconexit0"}, o.flags...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.Dir, &out, &out, outputTime
	began := time.Now()
	if err = cmd.Start(); err == nil {
		trace := time.AfterFunc(o.trace, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
		kill := time.AfterFunc(o.kill, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		trace.Stop()
		kill.Stop()
	}
	verdict, note := "ok  ", ""
	switch hasNone := bytes.Contains(out.Bytes(), []byte("testing: warning: no tests to run")); {
	case errors.Is(err, exec.ErrWaitDelay):
		err = errors.New("a process that it has started keeps its output open")
	case err == nil && hasNone && slices.Contains(o.flags, "-test.run"):
		err = errors.New("no tests to run")
	case hasNone:
		note = " [no tests to run]"
	}
	if err != nil {
		if b := out.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
			out.WriteByte('\n')
		}
		fmt.Fprintln(&out, err)
		verdict = "FAIL"
	} else {
		out.Reset()
	}
	fmt.Fprintf(&out, "%s\t%s\t%.3fs%s\n", verdict, p.ImportPath, time.Since(began).Seconds(), note)
	return out.Bytes(), err
}
