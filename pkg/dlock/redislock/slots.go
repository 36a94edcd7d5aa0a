package redislock

import (
	"strconv"
	"sync"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// slots is the number of slots of a cluster.
const slots = 16384

// slotOf returns CRC16 (XMODEM) of the hash tag, as the cluster specification defines it.
func slotOf(key string) int {
	tag, crc := redisnode.HashTag(key), uint16(0)
	for i := range len(tag) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^tag[i]]
	}
	return int(crc) % slots
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

// slotChannel returns a channel name that belongs to a slot of a cluster.
func slotChannel(slot int, me string) string { return "{" + slotTag(slot) + "}dlock:" + me }

// slotTag returns a hash tag of a slot.
func slotTag(slot int) string { return strconv.FormatUint(uint64(slotTags()[slot]), 36) }

// slotTags has a number for each slot. As text, with base 36, it is a hash tag of that slot.
var slotTags = sync.OnceValue(func() *[slots]uint32 {
	var tags [slots]uint32
	var text []byte
	for i, found := uint32(1), 0; found < slots; i++ {
		text = strconv.AppendUint(text[:0], uint64(i), 36)
		slot := slotOf(string(text))
		if tags[slot] == 0 {
			tags[slot] = i
			found++
		}
	}
	return &tags
})
