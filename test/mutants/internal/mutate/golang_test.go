package mutate

import (
	"slices"
	"strings"
	"testing"
)

const goSource = `package p

import "time"

const wait = 5 * time.Second

func (c *client[T]) run(n int) (int, error) {
	defer c.end()
	for i := 0; i < n; i++ {
		if c.closed && !c.busy {
			break
		}
		_ = c.call(time.Second)
		c.last = n
	}
	buffer := make([]byte, 0, 64)
	switch {
	case n > 3:
		return 0, errBusy
	}
	return n + 1, c.check(buffer)
}

func stop(done chan int, list []int) {
	if true {
		return
	}
	select {
	case <-done:
	}
	done <- list[2] - 1
	go stop(nil, nil)
}
`

// generated are the functions, kinds and texts of all mutants.
func generated(t *testing.T, file, src string) []string {
	t.Helper()
	all, err := Generate(file, []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.Func+" | "+m.Kind+" | "+m.Name())
	}
	return got
}

func compare(t *testing.T, got []string, want string) {
	t.Helper()
	expected := strings.Split(strings.TrimSpace(want), "\n")
	for _, w := range expected {
		if !slices.Contains(got, w) {
			t.Errorf("missing %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(expected, g) {
			t.Errorf("unexpected %s", g)
		}
	}
}

func TestGo(t *testing.T) {
	compare(t, generated(t, "p.go", goSource), `
wait | constant | const wait = «5 → 6» * time.Second
wait | constant | const wait = «5 → 4» * time.Second
wait | constant | const wait = «5 → 0» * time.Second
wait | constant | const wait = «5 → 50» * time.Second
wait | arithmetic | const wait = 5 «* → /» time.Second
client.run | call removed | «defer c.end() → »
client.run | constant | for i := «0 → 1»; i < n; i++ {
client.run | constant | for i := «0 → -1»; i < n; i++ {
client.run | condition | for i := 0; «i < n → (i < n) || true»; i++ {
client.run | condition | for i := 0; «i < n → (i < n) && false»; i++ {
client.run | comparison | for i := 0; i «< → >=» n; i++ {
client.run | boundary | for i := 0; i «< → <=» n; i++ {
client.run | arithmetic | for i := 0; i < n; i«++ → --» {
client.run | condition | if «c.closed && !c.busy → !(c.closed && !c.busy)» {
client.run | condition | if «c.closed && !c.busy → (c.closed && !c.busy) || true» {
client.run | condition | if «c.closed && !c.busy → (c.closed && !c.busy) && false» {
client.run | condition | if «c.closed → !(c.closed)» && !c.busy {
client.run | operand ignored | if «c.closed → ((c.closed) || true)» && !c.busy {
client.run | operand ignored | if c.closed && «!c.busy → ((!c.busy) || true)» {
client.run | negation removed | if c.closed && «!c.busy → c.busy» {
client.run | break removed | «break → »
client.run | call removed | «_ = c.call(time.Second) → »
client.run | constant | _ = c.call(«time.Second → (10 * time.Second)»)
client.run | constant | _ = c.call(«time.Second → (0 * time.Second)»)
client.run | assignment removed | «c.last = n → »
client.run | constant | buffer := make([]byte, «0 → 1», 64)
client.run | constant | buffer := make([]byte, «0 → -1», 64)
client.run | condition | case «n > 3 → (n > 3) || true»:
client.run | condition | case «n > 3 → (n > 3) && false»:
client.run | comparison | case n «> → <=» 3:
client.run | boundary | case n «> → >=» 3:
client.run | constant | case n > «3 → 4»:
client.run | constant | case n > «3 → 2»:
client.run | constant | case n > «3 → 0»:
client.run | constant | case n > «3 → 30»:
client.run | constant | return «0 → 1», errBusy
client.run | constant | return «0 → -1», errBusy
client.run | error ignored | return 0, «errBusy → nil»
client.run | arithmetic | return n «+ → -» 1, c.check(buffer)
client.run | constant | return n + «1 → 2», c.check(buffer)
client.run | constant | return n + «1 → 0», c.check(buffer)
client.run | constant | return n + «1 → 10», c.check(buffer)
client.run | error ignored | return n + 1, «c.check(buffer) → nil»
stop | condition | if «true → !(true)» {
stop | condition | if «true → (true) || true» {
stop | condition | if «true → (true) && false» {
stop | constant | if «true → false» {
stop | return removed | «return → »
stop | call removed | «done <- list[2] - 1 → »
stop | constant | done <- list[«2 → 3»] - 1
stop | arithmetic | done <- list[2] «- → +» 1
stop | constant | done <- list[2] - «1 → 2»
stop | constant | done <- list[2] - «1 → 0»
stop | constant | done <- list[2] - «1 → 10»
stop | call removed | «go stop(nil, nil) → »
`)
}

func TestTwins(t *testing.T) {
	got := generated(t, "p.go", "package p\nfunc f() {\n\tg()\n\tg()\n}\nfunc h() {\n\tg()\n}\n")
	compare(t, got, "f | call removed | «g() → »\nf | call removed | «g() → » #2\nh | call removed | «g() → »")
}

func TestApply(t *testing.T) {
	src := []byte("package p\n\nvar a = 1 < 2\n")
	all, err := Generate("p.go", src)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(m Mutant) bool { return m.Kind == "boundary" })
	if got := string(all[i].Apply(src)); got != "package p\n\nvar a = 1 <= 2\n" {
		t.Errorf("applied: %q", got)
	}
}

// A sample changes only where the file does.
func TestRankIsStable(t *testing.T) {
	first := func(src string) []string {
		all, err := Generate("p.go", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		var some []string
		for _, m := range Rank(all, 7)[:10] {
			some = append(some, m.ID())
		}
		return some
	}
	before := first(goSource)
	after := first(strings.Replace(goSource, "func stop", "// moved\n\nfunc stop", 1))
	if !slices.Equal(before, after) {
		t.Error("lines that moved changed the sample")
	}
	after = first(strings.Replace(goSource, "defer c.end()", "defer c.end(1)", 1))
	if kept := slices.DeleteFunc(after, func(id string) bool { return !slices.Contains(before, id) }); len(kept) < 8 {
		t.Errorf("one line changed, and only %d of 10 are the same", len(kept))
	}
	all, err := Generate("p.go", []byte(goSource))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(Rank(all, 7), Rank(all, 8)) {
		t.Error("the seed changes nothing")
	}
}

// One mutant of each place comes before a second one of any.
func TestRankIsSpread(t *testing.T) {
	all, err := Generate("p.go", []byte(goSource))
	if err != nil {
		t.Fatal(err)
	}
	places := map[int]bool{}
	for _, m := range all {
		places[m.Start] = true
	}
	for _, m := range Rank(all, 1)[:len(places)] {
		delete(places, m.Start)
	}
	if len(places) > 0 {
		t.Errorf("%d places come late", len(places))
	}
}

func TestNotGo(t *testing.T) {
	for _, file := range []string{"p.go", "p.lua", "p.txt"} {
		if _, err := Generate(file, []byte("?")); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
