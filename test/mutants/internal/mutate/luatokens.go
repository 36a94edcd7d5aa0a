package mutate

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
)

type luaKind int

const (
	luaName luaKind = iota
	luaKeyword
	luaNumber
	luaString
	luaOperator
)

// A luaToken is a piece of a script; comments and white space are none.
type luaToken struct {
	kind       luaKind
	text       string
	start, end int
}

var luaKeywords = []string{
	"and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in",
	"local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
}

// The patterns of Lua 5.1, in the order in which they are tried.
var luaPatterns = []struct {
	kind    luaKind
	pattern *regexp.Regexp
}{
	{luaName, regexp.MustCompile(`^[A-Za-z_]\w*`)},
	{luaNumber, regexp.MustCompile(`^(0[xX][0-9a-fA-F]+|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)`)},
	{luaString, regexp.MustCompile(`^("([^"\\\n]|\\[\s\S])*"|'([^'\\\n]|\\[\s\S])*')`)},
	{luaOperator, regexp.MustCompile(`^(\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])`)},
}

var (
	luaSpace = regexp.MustCompile(`^\s+`)
	luaLong  = regexp.MustCompile(`^\[(=*)\[`)
)

// luaTokens cuts a script into tokens.
func luaTokens(src []byte) ([]luaToken, error) {
	var tokens []luaToken
	for at := 0; at < len(src); {
		rest := src[at:]
		if n := luaSkip(rest); n > 0 {
			at += n
			continue
		}
		n, kind := luaNext(rest)
		if n == 0 {
			return nil, fmt.Errorf("line %d: not Lua: %.20q", bytes.Count(src[:at], []byte("\n"))+1, rest)
		}
		text := string(rest[:n])
		if kind == luaName && slices.Contains(luaKeywords, text) {
			kind = luaKeyword
		}
		tokens = append(tokens, luaToken{kind, text, at, at + n})
		at += n
	}
	return tokens, nil
}

// luaSkip is the length of the white space or the comment at the beginning.
func luaSkip(src []byte) int {
	if n := len(luaSpace.Find(src)); n > 0 {
		return n
	}
	if !bytes.HasPrefix(src, []byte("--")) {
		return 0
	}
	if n := luaLongBracket(src[2:]); n > 0 {
		return 2 + n
	}
	if n := bytes.IndexByte(src, '\n'); n >= 0 {
		return n
	}
	return len(src)
}

func luaNext(src []byte) (int, luaKind) {
	if n := luaLongBracket(src); n > 0 {
		return n, luaString
	}
	for _, p := range luaPatterns {
		if n := len(p.pattern.Find(src)); n > 0 {
			return n, p.kind
		}
	}
	return 0, 0
}

// luaLongBracket is the length of the [[long bracket]] at the beginning.
func luaLongBracket(src []byte) int {
	open := luaLong.FindSubmatch(src)
	if open == nil {
		return 0
	}
	end := slices.Concat([]byte("]"), open[1], []byte("]"))
	n := bytes.Index(src, end)
	if n < 0 {
		return 0
	}
	return n + len(end)
}

// endsValue says whether a value can end with this token.
func (t luaToken) endsValue() bool {
	switch t.kind {
	case luaName, luaNumber, luaString:
		return true
	case luaKeyword:
		return slices.Contains([]string{"end", "true", "false", "nil"}, t.text)
	default:
		return slices.Contains([]string{")", "]", "}", "..."}, t.text)
	}
}
