package cli

import (
	"slices"
	"strings"
)

// tokenEnv is the variable with the token of the lock page.
const tokenEnv = "DLOCK_UI_TOKEN"

// replaceVariables returns an environment with these variables, and without the secret ones. On Windows, the case of a
// name does not count.
func replaceVariables(env []string, own map[string]string, anyCase bool, secrets ...string) []string {
	isOurs := func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		if anyCase {
			name = strings.ToUpper(name) // as all names that we use are
		}
		_, replaced := own[name]
		return replaced || slices.Contains(secrets, name)
	}
	all := slices.DeleteFunc(slices.Clone(env), isOurs)
	for name, value := range own {
		all = append(all, name+"="+value)
	}
	return all
}

// withoutPassword returns the URL of a backend without its password. It returns "" for what is no URL: that may be a
// password as a whole.
func withoutPassword(raw string) string {
	u, err := ParseURL(raw)
	switch {
	case err != nil:
		return ""
	case u.Password == "":
		return raw
	}
	scheme, rest, _ := strings.Cut(raw, "://")
	hosts, _, _ := strings.Cut(rest, "?")
	hosts, _, _ = strings.Cut(hosts, "/")
	at := strings.LastIndex(hosts, "@")
	user, _, _ := strings.Cut(hosts, ":")
	if user != "" {
		user += "@"
	}
	return scheme + "://" + user + rest[at+1:]
}
