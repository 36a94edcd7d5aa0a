package dlock

import (
	"crypto/rand"
	"encoding/hex"
)

// An idSource reads random bytes for several IDs at a time, because reading them costs more
// than the rest of an ID.
type idSource struct {
	raw  [32 * 16]byte
	used int
}

func (s *idSource) next() string {
	if s.used == 0 {
		_, _ = rand.Read(s.raw[:]) // never fails; see its documentation
	}
	var text [32]byte
	hex.Encode(text[:], s.raw[s.used:s.used+16])
	s.used = (s.used + 16) % len(s.raw)
	return string(text[:])
}
