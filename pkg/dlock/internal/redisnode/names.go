package redisnode

import "strings"

// Separator begins every suffix. No name contains it, because the engine refuses control characters
// in keys and prefixes.
const Separator = "\x01"

// Siblings returns the common start of the names of a lock's other keys, and whether they are in
// the slot of lock. If the name has a hash tag, they share it. If the name has no closing brace,
// the whole name becomes the tag. Other names cannot be placed. A name that is used unchanged gets
// one more separator, so that the siblings of {x} are not those of x.
func Siblings(lock string) (base string, placed bool) {
	if tag := HashTag(lock); tag != lock {
		return lock + Separator, true
	}
	if !strings.Contains(lock, "}") {
		return "{" + lock + "}", true
	}
	return lock + Separator, false
}

// HashTag returns the part of a key that decides its slot.
func HashTag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}
