//go:build unix

package main

import (
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
	away := command("redis://127.0.0.1:1", "__complete", "show", "")
	away.Env = append(away.Env, impatient)
	out, errs, code := finish(t, away)
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

// completes starts a bash that has loaded the completion.
func completes(t *testing.T, backend, first string) *shell {
	t.Helper()
	s := interactiveOn(t, backend, t.TempDir(), "INPUTRC=/dev/null", "PATH="+filepath.Dir(program)+":/usr/bin:/bin")
	s.types(t, "cd $D; "+first+" source <(dlock completion bash) && echo load''ed\n")
	s.shows(t, "loaded")
	return s
}

// A bash without the package bash-completion completes commands, values with and without =, and keys with colons.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	backend := files(t)
	holds(t, backend, "ann", "deploy:web")
	s := completes(t, backend, "")
	s.types(t, "dlock ru\t")
	s.shows(t, "dlock run ")
	s.types(t, "--on-lost w\t")
	s.shows(t, "--on-lost warn ")
	s.types(t, "--on-lost=k\t")
	s.shows(t, "--on-lost=kill ")
	s.types(t, "k -- echo exit''ed\n")
	s.shows(t, "exited")
	s.types(t, "dlock show deploy:\t")
	s.shows(t, "deploy:web ")
	s.types(t, "\n")
	s.shows(t, "TOKEN")
	s.types(t, "dlock --backend etcd:\t")
	s.shows(t, "etcd://")
	s.types(t, "h --version; exit\n")
	if code := exitOf(s.cmd); code != 0 || strings.Contains(s.String(), "command not found") {
		t.Errorf("exit %d: %s", code, s)
	}
}

// TAB runs nothing of the line and changes no file, with and without the package bash-completion.
func TestCompletionRunsNothing(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"bare": "", "with the package": "[ ! -r /usr/share/bash-completion/bash_completion ] || . /usr/share/bash-completion/bash_completion;"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := files(t)
			holds(t, backend, "ann", "deploy")
			s := completes(t, backend, first)
			s.types(t, "echo precious | tee err.log log2 log3 log4 > log5\n")
			for _, line := range []string{
				"run k -- make 2> err.log ", "run k -- make > log2 ", "run k -- make 2>log3 >/dev/null ", "run k -- echo $(touch ran) ", "run k -- echo `touch ran` ",
				"run k make 2> err.log ", "run k make > log2 ", "run k make >log3 ", "run k make &> log4 ", "run k make >| log5 ", "run k echo $(touch ran) ", "run k echo `touch ran` ",
				"show $(touch ran)", "show `touch ran` ", "show \"$(touch ran) ", "show ${x:-$(touch ran)} ", "show <(touch ran) ", "show > ", "show >", "show > err.log ",
				"show 2>err.log >log2 ", "ls > log2 --", "show k; touch ran; dlock show ", "show ';' touch ran ",
			} {
				s.types(t, "dlock "+line+"\t\x15\n")
			}
			s.types(t, "cat err.log log2 log3 log4 log5 | grep -c precious | sed 's/^/le''ft /'; ls ran\n")
			s.shows(t, "left ")
			s.shows(t, "No such file")
			if !strings.Contains(s.String(), "left 5") {
				t.Errorf("a file was changed: %s", s)
			}
			s.types(t, "dlock run k -- cat err.l\t\n")
			s.shows(t, "cat err.log ")
			s.types(t, "dlock show 2> log2 de\t\n")
			s.shows(t, "log2 deploy ")
			s.types(t, "dlock show > err.l\t\n")
			s.shows(t, "show > err.log ")
			s.exits(t)
		})
	}
}
