package mutate

import (
	"strconv"
	"strings"
)

// otherNumbers are the numbers that replace a literal: one more, one less, zero and ten
// times as much. Of modes of files, which are octal, only zero.
func otherNumbers(literal string) []string {
	if strings.HasPrefix(literal, "0o") {
		return []string{"0"}
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(literal, "_", ""), 0, 64)
	if err != nil {
		f, err := strconv.ParseFloat(strings.ReplaceAll(literal, "_", ""), 64)
		if err != nil {
			return nil
		}
		return []string{"0.0", strconv.FormatFloat(10*f, 'g', -1, 64)}
	}
	others := []string{strconv.FormatInt(n+1, 10), strconv.FormatInt(n-1, 10)}
	if n != 0 && n != 1 {
		others = append(others, "0")
	}
	if n != 0 {
		others = append(others, strconv.FormatInt(10*n, 10))
	}
	return others
}
