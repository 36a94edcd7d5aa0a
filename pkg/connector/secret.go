package connector

import "strings"

// hidden replaces a password wherever a configuration is shown.
const hidden = "[hidden]"

func hide(secret string) string {
	if secret == "" {
		return ""
	}
	return hidden
}

// hideUsers removes user and password from addresses that are URLs. Such an address is invalid, but
// may still be printed.
func hideUsers(addrs []string) []string {
	var shown []string
	for _, a := range addrs {
		shown = append(shown, hideUser(a))
	}
	return shown
}

func hideUser(addr string) string {
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		return hidden + addr[i:]
	}
	return addr
}
