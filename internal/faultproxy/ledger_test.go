package faultproxy

import "testing"

// entry is a step of a ledger: a command, or a reply to match.
type entry struct {
	cmd   []string
	exp   expected
	reply string
	want  verdict
}

func TestLedger(t *testing.T) {
	const (
		subA    = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
		pushA   = ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
		message = "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n"
	)
	drop := expected{drop: true}
	for name, steps := range map[string][]entry{
		"replies come in order": {
			{cmd: []string{"GET", "k"}},
			{cmd: []string{"SET", "k", "v"}, exp: drop},
			{reply: "$-1\r\n"},
			{reply: "+OK\r\n", want: closeConn},
		},
		"the reply to a duplicate is hidden": {
			{cmd: []string{"INCR", "k"}},
			{cmd: []string{"INCR", "k"}, exp: expected{hide: true}},
			{reply: ":1\r\n"},
			{reply: ":2\r\n", want: hide},
		},
		"pushes are no replies": {
			{cmd: []string{"GET", "k"}, exp: drop},
			{reply: ">2\r\n$10\r\ninvalidate\r\n_\r\n"},
			{reply: "$1\r\nv\r\n", want: closeConn},
		},
		"one confirmation for each channel": {
			{cmd: []string{"SUBSCRIBE", "a", "b"}},
			{cmd: []string{"PING"}, exp: drop},
			{reply: subA},
			{reply: message},
			{reply: subA},
			{reply: "*2\r\n$4\r\npong\r\n$0\r\n\r\n", want: closeConn},
		},
		"a confirmation can be dropped": {
			{cmd: []string{"SUBSCRIBE", "a"}, exp: drop}, {reply: pushA, want: closeConn},
		},
		"a refused subscription has a reply": {
			{cmd: []string{"SSUBSCRIBE", "a", "b"}},
			{cmd: []string{"GET", "k"}, exp: drop},
			{reply: "-MOVED 1 127.0.0.1:1\r\n"},
			{reply: "$-1\r\n", want: closeConn},
		},
		"what was not asked for": {
			{cmd: []string{"SSUBSCRIBE", "a"}},
			{reply: ">3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n"},
			{reply: ">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n"},
			{cmd: []string{"GET", "k"}, exp: drop},
			{reply: "$-1\r\n", want: closeConn},
		},
		"unsubscribing from everything": {
			{cmd: []string{"SUBSCRIBE", "a", "b"}},
			{reply: subA},
			{reply: subA},
			{cmd: []string{"UNSUBSCRIBE"}},
			{cmd: []string{"GET", "k"}, exp: drop},
			{reply: "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n"},
			{reply: "*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n"},
			{reply: "$-1\r\n", want: closeConn},
		},
		"an array that only looks like a message": {
			{cmd: []string{"LRANGE", "k", "0", "-1"}, exp: drop}, {reply: message, want: closeConn},
		},
	} {
		t.Run(name, func(t *testing.T) { runLedger(t, steps) })
	}
}

func runLedger(t *testing.T, steps []entry) {
	var l ledger
	for i, step := range steps {
		if step.cmd != nil {
			l.expect(step.cmd, step.exp)
		} else if got := l.match(shapeOf([]byte(step.reply))); got != step.want {
			t.Fatalf("step %d: %q is %d, want %d", i, step.reply, got, step.want)
		}
	}
	if len(l.open) != 0 {
		t.Errorf("%d commands are still open", len(l.open))
	}
}

func TestCannedAnswersWaitForTheirTurn(t *testing.T) {
	var l ledger
	l.expect([]string{"GET", "k"}, expected{})
	l.answer([]byte("-ERR one\r\n"))
	l.answer([]byte("-ERR two\r\n"))
	if early := l.canned(); len(early) != 0 {
		t.Errorf("before the reply to GET: %q", early)
	}
	l.match(shapeOf([]byte("$-1\r\n")))
	if turn := l.canned(); len(turn) != 2 {
		t.Errorf("after it: %q", turn)
	}
}
