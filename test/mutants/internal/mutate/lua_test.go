package mutate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLuaTokens(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"names and numbers", "a1 = 0x1F + .5e-3 - 10", "a1 = 0x1F + .5e-3 - 10"},
		{"comments", "a -- b\n--[[ c\nd ]] e --[==[ f ]] ]==] g", "a e g"},
		{"strings", `'a\'b' "c--d" [[e
f]] [=[g]]h]=]`, "'a\\'b' \"c--d\" [[e\nf]] [=[g]]h]=]"},
		{"operators", "a..b...==~=<=>=<>#%", "a .. b ... == ~= <= >= < > # %"},
		{"index", "t[i]", "t [ i ]"},
	} {
		tokens, err := luaTokens([]byte(c.src))
		var got []string
		for _, token := range tokens {
			got = append(got, token.text)
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	for _, src := range []string{"a ? b", "'open", "\"line\n\""} {
		if _, err := luaTokens([]byte(src)); err == nil {
			t.Errorf("%q is Lua", src)
		}
	}
}

func TestLuaKinds(t *testing.T) {
	tokens, err := luaTokens([]byte("local x = 'then'"))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []luaKind
	for _, token := range tokens {
		kinds = append(kinds, token.kind)
	}
	if want := []luaKind{luaKeyword, luaName, luaOperator, luaString}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

const luaSource = `-- if this < that then it is a comment
local call = redis.call
local function hold(lock, px)
  if not px then return false end
  call('SET', lock, 'a', 'PX', px, 'NX')
end
local value = redis.call('GET', KEYS[1])
if value and #value >= 32 then
  hold(KEYS[1], '500')
  answer = {value, -1}
end
for i = 1, 3 do if value == i then break end end
return value or answer
`

func TestLua(t *testing.T) {
	compare(t, generated(t, "s.lua", luaSource), `
hold | condition | if «not px → (not px) or true» then return false end
hold | condition | if «not px → (not px) and false» then return false end
hold | negation removed | if «not → »px then return false end
hold | return removed | if not px then «return false → » end
hold | constant | if not px then return «false → true» end
hold | call removed | «call('SET', lock, 'a', 'PX', px, 'NX') → »
hold | option left out | call('SET', lock, 'a'«, 'PX', px → », 'NX')
hold | option left out | call('SET', lock, 'a', 'PX', px«, 'NX' → »)
- | constant | local value = redis.call('GET', KEYS[«1 → 2»])
- | condition | if «value and #value >= 32 → not (value and #value >= 32)» then
- | condition | if «value and #value >= 32 → (value and #value >= 32) or true» then
- | condition | if «value and #value >= 32 → (value and #value >= 32) and false» then
- | logic | if value «and → or» #value >= 32 then
- | comparison | if value and #value «>= → <» 32 then
- | boundary | if value and #value «>= → >» 32 then
- | constant | if value and #value >= «32 → 33» then
- | constant | if value and #value >= «32 → 31» then
- | constant | if value and #value >= «32 → 0» then
- | constant | if value and #value >= «32 → 320» then
- | call removed | «hold(KEYS[1], '500') → »
- | constant | hold(KEYS[«1 → 2»], '500')
- | constant | hold(KEYS[1], «'500' → '501'»)
- | constant | hold(KEYS[1], «'500' → '499'»)
- | constant | hold(KEYS[1], «'500' → '0'»)
- | constant | hold(KEYS[1], «'500' → '5000'»)
- | assignment removed | «answer = {value, -1} → »
- | constant | answer = {value, -«1 → 2»}
- | constant | answer = {value, -«1 → 0»}
- | constant | answer = {value, -«1 → 10»}
- | constant | for i = «1 → 2», 3 do if value == i then break end end
- | constant | for i = «1 → 0», 3 do if value == i then break end end
- | constant | for i = «1 → 10», 3 do if value == i then break end end
- | constant | for i = 1, «3 → 4» do if value == i then break end end
- | constant | for i = 1, «3 → 2» do if value == i then break end end
- | constant | for i = 1, «3 → 0» do if value == i then break end end
- | constant | for i = 1, «3 → 30» do if value == i then break end end
- | condition | for i = 1, 3 do if «value == i → (value == i) or true» then break end end
- | condition | for i = 1, 3 do if «value == i → (value == i) and false» then break end end
- | comparison | for i = 1, 3 do if value «== → ~=» i then break end end
- | break removed | for i = 1, 3 do if value == i then «break → » end end
- | logic | return value «or → and» answer
`)
}

// Every mutant of every script is a script: one that the server does not even load would be
// caught by all tests and prove nothing.
func TestLuaMutantsLoad(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr()})
	defer client.Close()
	scripts, err := filepath.Glob("../../../../pkg/dlock/*/lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	for _, path := range scripts {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Generate(path, src)
		if err != nil || len(all) == 0 {
			t.Fatalf("%s: %d mutants, %v", path, len(all), err)
		}
		for _, m := range all {
			if err := client.ScriptLoad(t.Context(), string(m.Apply(src))).Err(); err != nil {
				t.Errorf("%s: %v", m, err)
			}
		}
	}
}
