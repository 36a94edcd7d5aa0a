package redisnode

import "strings"

// Separator begins every suffix. No name contains it: the engine refuses control
// characters in keys and prefixes.
const Separator = "\x01"

// Siblings returns what the names of the siblings begin with, and whether they
// are in the slot of lock: with a hash tag in the name they share it; without a
// closing brace the whole name becomes the tag; other names cannot be placed. A name that
// is used as it is gets one separator more: the siblings of {x} are not those of x.
func Siblings(lock string) (base string, placed bool) {
	if tag := HashTag(lock); tag != lock {
		return lock + Separator, true
	}
	if !strings.Contains(lock, "}") {
		return "{" + lock + "}", true
	}
	return lock + Separator, false
}

// HashTag is the part of a key that decides its slot.
func HashTag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}
