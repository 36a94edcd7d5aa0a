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
func slotChannel(slot int, me string) string { return "{" + slotTags()[slot] + "}dlock:" + me }

// slotTags has one hash tag for each slot. It is computed when a cluster is first used.
var slotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for i, found := 0, 0; found < slots; i++ {
		tag := strconv.FormatInt(int64(i), 36)
		slot := slotOf(tag)
		if tags[slot] == "" {
			tags[slot] = tag
			found++
		}
	}
	return &tags
})
