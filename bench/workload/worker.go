package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A Worker is a process of this program that measures one peer, alone with its heap
// and its scheduler. Calls are made one at a time.
type Worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// StartWorker starts a process, which ends with Close, or with this one.
func StartWorker() (*Worker, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &Worker{cmd: exec.Command(path)}
	w.cmd.Env = append(os.Environ(), workerEnv+"=1")
	w.cmd.Stderr = os.Stderr
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.in, w.out = in, json.NewDecoder(out)
	return w, w.cmd.Start()
}

// patience is how long a worker may take beyond what it was asked for.
const patience = 30 * time.Second

// errHung: a worker did not answer, and was killed.
var errHung = errors.New("hung, and was killed")

// Call has the worker do something that lasts about so long. A worker that does not
// answer is killed.
func (w *Worker) Call(ctx context.Context, lasts time.Duration, op string, args, result any) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w.in).Encode(request{op, raw}); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lasts+patience, errHung)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })()
	var answer struct {
		Error  string
		Result json.RawMessage
	}
	if err := w.out.Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", op, errors.Join(context.Cause(ctx), err))
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", op, answer.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

// Pid is its process id.
func (w *Worker) Pid() int { return w.cmd.Process.Pid }

// Kill ends it without any warning.
func (w *Worker) Kill() error { return w.cmd.Process.Kill() }

// Close ends it and waits for its end, of which it does not matter how it was.
func (w *Worker) Close() {
	_ = w.in.Close()
	kill := time.AfterFunc(patience, func() { _ = w.cmd.Process.Kill() })
	defer kill.Stop()
	_ = w.cmd.Wait()
}
