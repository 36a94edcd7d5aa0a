package schedule

import (
	"fmt"
	"strings"
)

// Shards is how many masters the cluster has. Each begins with an equal range of slots.
const Shards = 3

const slots = 16384

// SteadyPrefix is that of keys on each of which one master is asked by hands that use no
// other, so that a master in trouble does not keep them from working.
const SteadyPrefix = "steady-"

// SteadyKey is a key of one shard. Behind prefix it is in a slot of that shard.
func SteadyKey(prefix string, shard int, epoch int64) string {
	for n := 0; ; n++ {
		key := fmt.Sprintf("%s%d-%d-%d", SteadyPrefix, shard, epoch, n)
		if ShardOfKey(prefix+key) == shard {
			return key
		}
	}
}

// ShardOfKey is the shard in whose slots a key is, if none has moved.
func ShardOfKey(key string) int { return (Slot(key)*Shards + Shards - 1) / slots }

// FirstSlot is the first slot of a shard.
func FirstSlot(shard int) int { return shard * slots / Shards }

// ShardOf is the shard that a fault strikes.
func (f Fault) ShardOf() int { return f.Target % Shards }

// Slot is the slot of a key, as Redis computes it: CRC-16/XMODEM of the key, or of its hash tag.
func Slot(key string) int {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}
