package dlock

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxKey is the longest key in bytes.
const maxKey = 1024

// checkKey accepts names that every backend, and every reader, can distinguish: 1 to 1024 bytes of
// valid UTF-8 in which every character is printable or a space (U+0020). Backends rely on this,
// because they add their own separators to a name.
func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: empty", ErrInvalidKey)
	}
	if err := checkName(key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return nil
}

// checkName accepts a key or a prefix.
func checkName(name string) error {
	if err := checkText(name); err != nil {
		return err
	}
	for i, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("character %U at byte %d is not printable", r, i)
		}
	}
	return nil
}

// checkText accepts what can be shown on one line.
func checkText(text string) error {
	if len(text) > maxKey {
		return fmt.Errorf("%d bytes are more than %d", len(text), maxKey)
	}
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return fmt.Errorf("invalid UTF-8 at byte %d", i)
			}
		}
		if unicode.IsControl(r) {
			return fmt.Errorf("control character %U at byte %d", r, i)
		}
	}
	return nil
}

// checkTTL refuses a TTL that is too short to be renewed in time, or longer than a day.
func checkTTL(ttl, least time.Duration) error {
	least = max(least, minTTL)
	if ttl < least || ttl > maxTTL {
		return fmt.Errorf("%w: %v is not between %v and %v", ErrInvalidTTL, ttl, least, maxTTL)
	}
	return nil
}

func checkDuration(name string, d, most time.Duration) error {
	if d < 0 || d > most {
		return fmt.Errorf("%w: %s %v is not between 0 and %v", ErrInvalidConfig, name, d, most)
	}
	return nil
}
