package dlock

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxKey is the longest key in bytes.
const maxKey = 1024

// checkKey accepts the names that every backend can keep apart: 1 to 1024
// bytes of valid UTF-8 without control characters. Backends rely on it: they
// put separators of their own beside a name.
func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: empty", ErrInvalidKey)
	}
	if err := checkName(key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return nil
}

func checkName(name string) error {
	if len(name) > maxKey {
		return fmt.Errorf("%d bytes are more than %d", len(name), maxKey)
	}
	for i, r := range name {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(name[i:]); size == 1 {
				return fmt.Errorf("invalid UTF-8 at byte %d", i)
			}
		}
		if unicode.IsControl(r) {
			return fmt.Errorf("control character %U at byte %d", r, i)
		}
	}
	return nil
}

// checkTTL refuses a lease that is too short to be renewed in time, or absurd.
func checkTTL(ttl, least time.Duration) error {
	least = max(least, minTTL)
	if ttl < least || ttl > maxTTL {
		return fmt.Errorf("%w: %v is not between %v and %v", ErrInvalidTTL, ttl, least, maxTTL)
	}
	return nil
}

func checkSpan(name string, d, most time.Duration) error {
	if d < 0 || d > most {
		return fmt.Errorf("%w: %s %v is not between 0 and %v", ErrInvalidConfig, name, d, most)
	}
	return nil
}
