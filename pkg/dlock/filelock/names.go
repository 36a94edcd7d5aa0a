package filelock

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/fnv"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	lockSuffix = ".lock"
	// maxBase is the longest name that is not replaced by its hash. Names of this length also fit
	// where file names are encrypted and limited to 143 bytes.
	maxBase = 128
	// hashMark is the start of hashed names. No escaped name contains it.
	hashMark = "~"
	// guards is how many guard files all keys share.
	guards = 64
)

// Name returns the name of a lock's file in its directory, for a key with the Prefix of its Client.
// Every byte other than a-z, 0-9, '_' and '-' is escaped as in URLs, so that names mean the same on
// file systems that ignore case or rewrite Unicode. On Windows, the first letter of a name that is
// a device, such as con, is escaped as well. Long names are hashed, and the key is inside
// the file. It is the file to pass to flock(1):
//
//	flock "$dir/$name" command
func Name(key string) string { return baseOf(key) + lockSuffix }

// baseOf returns the start of the names of all files of a key.
func baseOf(key string) string {
	base := escape(key)
	if !filepath.IsLocal(base + lockSuffix) { // con, nul and others are devices on Windows
		base = escapeByte(base[0]) + base[1:]
	}
	if len(base) <= maxBase {
		return base
	}
	sum := sha256.Sum256([]byte(key))
	return hashMark + hex.EncodeToString(sum[:])
}

// keyOf is the inverse of baseOf; ok is false for hashes and for names that baseOf never returns.
func keyOf(base string) (key string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(base); i++ {
		if base[i] != '%' {
			b.WriteByte(base[i])
			continue
		}
		n, err := strconv.ParseUint(base[i+1:min(i+3, len(base))], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(n))
		i += 2
	}
	key = b.String()
	return key, key != "" && baseOf(key) == base
}

// isHash reports whether a name begins with a hash.
func isHash(base string) bool {
	return strings.HasPrefix(base, hashMark) && len(base) == len(hashMark)+2*sha256.Size
}

func escape(key string) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, len(key)+8)
	for i := range len(key) {
		c := key[i]
		if plain(c) && (c != '-' || i > 0) { // a leading '-' looks like an option
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

func escapeByte(c byte) string { return "%" + hex.EncodeToString([]byte{c}) }

func plain(c byte) bool {
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'
}

// slotName returns the file name of one of several holders.
func slotName(base string, n int) string { return base + "." + strconv.Itoa(n) }

func guardName(base string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(base))
	return ".guard-" + strconv.Itoa(int(h.Sum32()%guards))
}
