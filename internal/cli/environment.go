package cli

import (
	"slices"
	"strings"
)

// replaceVariables returns an environment with these variables, and without the secret one. On Windows, the case of a
// name does not count.
func replaceVariables(env []string, own map[string]string, secret string, anyCase bool) []string {
	isOurs := func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		if anyCase {
			name = strings.ToUpper(name) // as all names that we use are
		}
		_, replaced := own[name]
		return replaced || name == secret
	}
	all := slices.DeleteFunc(slices.Clone(env), isOurs)
	for name, value := range own {
		all = append(all, name+"="+value)
	}
	return all
}
