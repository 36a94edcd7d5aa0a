//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Keys are completed from those that are held, silently.
func TestCompletion(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		holds(t, backend, "ann", "deploy")
		holds(t, backend, "ann", "backup")
		for _, command := range []string{"show", "evict", "run", "watch"} {
			out, _, code := dlock(t, backend, "__complete", command, "de")
			if code != 0 || out != "deploy\n:4\n" {
				t.Errorf("%s: exit %d, %q", command, code, out)
			}
		}
	})
	out, errs, code := dlock(t, "redis://127.0.0.1:1", "__complete", "show", "")
	if code != 0 || out != ":4\n" || strings.Contains(errs, "refused") {
		t.Errorf("a backend that is away: exit %d, %q, %q", code, out, errs)
	}
	out, _, code = dlock(t, files(t), "__complete", "run", "--on-lost", "")
	if code != 0 || out != "kill\nwarn\n:4\n" {
		t.Errorf("values of a flag: exit %d, %q", code, out)
	}
	out, _, code = dlock(t, files(t), "__complete", "run", "--backend", "redis")
	if code != 0 || out != "redis+cluster://\nredis+sentinel://\nredis://\nrediss+cluster://\nrediss+sentinel://\nrediss://\n:6\n" {
		t.Errorf("schemes of backends: exit %d, %q", code, out)
	}
	if out, _, code = dlock(t, files(t), "__complete", "run", "--wait", ""); code != 0 || out != ":4\n" {
		t.Errorf("a duration: exit %d, %q", code, out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, code := dlock(t, files(t), "completion", shell); code != 0 || !strings.Contains(out, "dlock") || errs != "" {
			t.Errorf("%s: exit %d, %s", shell, code, errs)
		}
	}
}

// A bash without the package bash-completion completes commands, values with and without =, and keys with colons.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err) // scripts/test runs in it
	}
	backend := files(t)
	holds(t, backend, "ann", "deploy:web")
	cmd := command(backend, "--norc", "--noprofile", "-i")
	cmd.Path, cmd.Args[0] = bash, "bash"
	cmd.Env = append(cmd.Env, "PS1=prompt> ", "HISTFILE=", "INPUTRC=/dev/null", "TERM=dumb", "PATH="+filepath.Dir(program)+":/usr/bin:/bin")
	s := onTerminal(t, cmd)
	send := func(text string) {
		if _, err := s.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	s.shows(t, "prompt> ")
	send("source <(dlock completion bash) && echo load''ed\n")
	s.shows(t, "loaded")
	send("dlock ru\t")
	s.shows(t, "dlock run ")
	send("--on-lost w\t")
	s.shows(t, "--on-lost warn ")
	send("--on-lost=k\t")
	s.shows(t, "--on-lost=kill ")
	send("k -- echo exit''ed\n")
	s.shows(t, "exited")
	send("dlock show deploy:\t")
	s.shows(t, "deploy:web ")
	send("\n")
	s.shows(t, "TOKEN")
	send("dlock --backend etcd:\t")
	s.shows(t, "etcd://")
	send("h --version; exit\n")
	if code := exitOf(cmd); code != 0 || strings.Contains(s.String(), "command not found") {
		t.Errorf("exit %d: %s", code, s)
	}
}
