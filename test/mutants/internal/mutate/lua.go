package mutate

import (
	"regexp"
	"slices"
	"strings"
)

// A script is a Lua script on its way through the generator.
type script struct {
	*generator
	tokens []luaToken
	blocks []luaBlock // that are open, the outermost first
}

type luaBlock struct {
	word string // what opened it
	name string // of a function
}

// lua generates the mutants of a script. Each is a script by its syntax.
func (g *generator) lua() error {
	tokens, err := luaTokens(g.src)
	if err != nil {
		return err
	}
	s := &script{generator: g, tokens: tokens}
	for i, t := range tokens {
		s.track(i)
		s.fn = s.function()
		switch t.kind {
		case luaKeyword:
			s.keyword(i)
		case luaOperator:
			s.operator(i)
		case luaNumber:
			s.numbers(i, t.text, "")
		case luaString:
			s.string(i)
		case luaName:
			s.statement(i)
			s.options(i)
		}
	}
	return nil
}

// track keeps the list of open blocks.
func (s *script) track(i int) {
	switch t := s.tokens[i]; t.text {
	case "function":
		name := ""
		if next := s.at(i + 1); next.kind == luaName {
			name = next.text
		}
		s.blocks = append(s.blocks, luaBlock{t.text, name})
	case "if", "do", "repeat":
		if t.kind == luaKeyword {
			s.blocks = append(s.blocks, luaBlock{word: t.text})
		}
	case "end", "until":
		if t.kind == luaKeyword && len(s.blocks) > 0 {
			s.blocks = s.blocks[:len(s.blocks)-1]
		}
	}
}

func (s *script) function() string {
	for _, b := range slices.Backward(s.blocks) {
		if b.name != "" {
			return b.name
		}
	}
	return ""
}

// at is a token, or none beyond the ends.
func (s *script) at(i int) luaToken {
	if i < 0 || i >= len(s.tokens) {
		return luaToken{kind: luaOperator}
	}
	return s.tokens[i]
}

func (s *script) keyword(i int) {
	t := s.tokens[i]
	switch t.text {
	case "if", "elseif", "while", "until":
		s.decision(i+1, s.valueEnd(i+1, false))
	case "and":
		s.add("logic", t.start, t.end, "or")
	case "or":
		s.add("logic", t.start, t.end, "and")
	case "not":
		s.add("negation removed", t.start, s.at(i+1).start, "")
	case "true":
		s.add("constant", t.start, t.end, "false")
	case "false":
		s.add("constant", t.start, t.end, "true")
	case "break":
		s.add("break removed", t.start, t.end, "")
	case "return":
		s.earlyReturn(i)
	}
}

// decision makes a condition the other way round, and always the same. What it calls is
// still called.
func (s *script) decision(first, end int) {
	start, stop := s.at(first).start, s.at(end-1).end
	text := string(s.src[start:stop])
	if !s.isPlain(first, end) {
		s.add("condition", start, stop, "not ("+text+")")
	}
	s.add("condition", start, stop, "("+text+") or true")
	s.add("condition", start, stop, "("+text+") and false")
}

// isPlain says whether a condition is a comparison or a negation and nothing else, so that
// another mutant makes it the other way round.
func (s *script) isPlain(first, end int) bool {
	plain := s.at(first).text == "not"
	for _, t := range s.tokens[first:end] {
		if t.text == "and" || t.text == "or" {
			return false
		}
		plain = plain || luaOpposite[t.text] != ""
	}
	return plain
}

// earlyReturn removes a return from a branch or a loop.
func (s *script) earlyReturn(i int) {
	if len(s.blocks) == 0 || s.blocks[len(s.blocks)-1].word == "function" {
		return
	}
	end := s.valueEnd(i+1, true)
	s.add("return removed", s.tokens[i].start, s.at(end-1).end, "")
}

var (
	luaOpposite = map[string]string{"==": "~=", "~=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
	luaBoundary = map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
	luaReckon   = map[string]string{"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"}
)

func (s *script) operator(i int) {
	t := s.tokens[i]
	if !s.at(i - 1).endsValue() {
		return // a sign, or a bracket
	}
	for kind, table := range map[string]map[string]string{"comparison": luaOpposite, "boundary": luaBoundary, "arithmetic": luaReckon} {
		if other := table[t.text]; other != "" {
			s.add(kind, t.start, t.end, other)
		}
	}
}

func (s *script) numbers(i int, literal, quote string) {
	t := s.tokens[i]
	others := otherNumbers(literal)
	if s.at(i-1).text == "[" && s.at(i+1).text == "]" {
		others = others[:1] // one wrong index is like another
	}
	for _, other := range others {
		s.add("constant", t.start, t.end, quote+other+quote)
	}
}

var luaDigits = regexp.MustCompile(`^['"](\d+)['"]$`)

// string mutates numbers in quotation marks, as the server takes and returns them.
func (s *script) string(i int) {
	t := s.tokens[i]
	if m := luaDigits.FindStringSubmatch(t.text); m != nil {
		literal := strings.TrimLeft(m[1], "0")
		if literal == "" {
			literal = "0"
		}
		s.numbers(i, literal, t.text[:1])
	}
}

// statement removes calls whose result is not used, and assignments.
func (s *script) statement(i int) {
	if !s.beginsStatement(i) {
		return
	}
	end := i + 1
	for !s.beginsStatement(end) && slices.Contains([]string{".", ":", "[", "("}, s.at(end).text) {
		switch s.at(end).text {
		case ".", ":":
			end += 2
		default:
			end = s.closing(end) + 1
		}
	}
	switch s.at(end).text {
	case "=", ",":
		end = s.valueEnd(s.find(end, "=")+1, true)
		s.add("assignment removed", s.tokens[i].start, s.at(end-1).end, "")
	default:
		s.add("call removed", s.tokens[i].start, s.at(end-1).end, "")
	}
}

// beginsStatement is known from the token before a name: no value has two names in a row.
func (s *script) beginsStatement(i int) bool {
	if s.at(i).kind != luaName {
		return false
	}
	before := s.at(i - 1)
	return i == 0 || before.endsValue() || slices.Contains([]string{"then", "do", "else", "repeat", ";"}, before.text)
}

func (s *script) find(i int, text string) int {
	for i < len(s.tokens) && s.tokens[i].text != text {
		i++
	}
	return i
}

// closing is the bracket that closes the one at i.
func (s *script) closing(i int) int {
	depth := 0
	for ; i < len(s.tokens); i++ {
		switch s.tokens[i].text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return i - 1
}

var luaEndsValue = []string{
	"then", "do", "end", "else", "elseif", "until", "local", "return", "break",
	"if", "for", "while", "repeat", "function", "=", ";", ")", "]", "}",
}

// valueEnd is the token after the value at i, or after a list of values.
func (s *script) valueEnd(i int, list bool) int {
	for first := i; i < len(s.tokens); i++ {
		switch t := s.tokens[i]; {
		case slices.Contains(luaEndsValue, t.text) && t.kind != luaString:
			return i
		case t.text == "," && !list:
			return i
		case i > first && s.beginsStatement(i):
			return i
		case t.text == "(" || t.text == "[" || t.text == "{":
			i = s.closing(i)
		}
	}
	return i
}

// luaOptions are the options of commands that can be left out, with the number of values
// that follow them.
var luaOptions = map[string]int{
	"NX": 0, "XX": 0, "KEEPTTL": 0, "GET": 0, "WITHSCORES": 0, "WITHVALUES": 0, "BYSCORE": 0,
	"PX": 1, "EX": 1, "PXAT": 1, "LIMIT": 2,
}

// options leaves out options of commands.
func (s *script) options(i int) {
	open := i + 1
	if s.tokens[i].text == "redis" && s.at(i+1).text == "." {
		open = i + 3
	}
	if s.at(open).text != "(" || !strings.HasSuffix(s.at(open-1).text, "call") {
		return
	}
	args := s.arguments(open)
	for n := 1; n < len(args); n++ {
		name := strings.Trim(s.at(args[n][0]).text, `'"`)
		values, known := luaOptions[name]
		if known && args[n][1] == args[n][0]+1 && n+values < len(args) {
			s.add("option left out", s.at(args[n-1][1]).start, s.at(args[n+values][1]-1).end, "")
		}
	}
}

// arguments are the first token of each argument, and the one after its last.
func (s *script) arguments(open int) [][2]int {
	var args [][2]int
	for i := open + 1; i < len(s.tokens) && s.at(i).text != ")"; {
		end := s.valueEnd(i, false)
		args = append(args, [2]int{i, end})
		if s.at(end).text != "," {
			break
		}
		i = end + 1
	}
	return args
}
