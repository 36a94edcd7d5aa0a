package filelock

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// read returns the figures in a file that is open, and its size, which is 0 if there is
// nothing in it that counts.
func read(fd int) (record, int64, error) {
	st, err := lookAt(fd)
	switch {
	case err != nil:
		return record{}, 0, err
	case st.removed:
		return record{}, 0, errRemoved
	case st.odd:
		return record{}, 0, ErrUnsafe
	}
	var head [headSize]byte
	n, err := readAt(fd, head[:], 0)
	if err != nil {
		return record{}, 0, err
	}
	rec, err := parse(head[:n])
	if err == nil && n > 0 && head[0] == 0 {
		err = onlyZeros(fd, st.size)
	}
	if rec == (record{}) {
		st.size = 0
	}
	return rec, st.size, err
}

// onlyZeros returns ErrNotALock if there is anything but zeros in a file, or more of them than
// a record has: a file that begins with zeros may be the data of another program.
func onlyZeros(fd int, size int64) error {
	if size > maxRecord {
		return ErrNotALock
	}
	buf := make([]byte, maxRecord)
	n, err := readAt(fd, buf, 0)
	if err != nil {
		return err
	}
	return notALock(len(bytes.TrimLeft(buf[:n], "\x00")) == 0)
}

// stale is for how long a file is believed to be where it was. One that was removed is
// noticed at once; one that was moved away takes a longer look.
const stale = time.Second

// readMain reads the lock file.
func (a *attempt) readMain() (record, int64, error) {
	if a.phase == driver.Queued || a.now.Sub(a.main.seen) > stale {
		here, err := isAt(a.main.fd, pathIn(a.dir.path, a.line.base+lockSuffix))
		if err != nil {
			return record{}, 0, err
		}
		if !here {
			return record{}, 0, errRemoved
		}
		a.main.seen = a.now
	}
	return read(a.main.fd)
}

// write writes everything but the mark of the waiters, and blanks over what was
// longer. A file that is longer than any record is cut instead: another user may have
// made it so, and filling it would cost memory and disk space of that size.
func (a *attempt) write(fd int, rec *record, size int64, named bool) error {
	b := a.line.buf[:0]
	off := int64(markSize)
	if size == 0 {
		b, off = appendMark(b, 0, 0), 0
	}
	b = rec.appendTo(b)
	head := len(b)
	if named {
		b = appendHolder(b, a.line.quoted, a.id, a.token, a.encode(&a.info))
	} else {
		b = appendHolder(b, a.line.quoted, "", 0, nil)
	}
	if named && off+int64(len(b)) > maxRecord { // nobody reads more, and Info serves people only
		b = appendHolder(b[:head], a.line.quoted, a.id, a.token, nil)
	}
	for size <= maxRecord && int64(len(b))+off < size {
		b = append(b, '\n')
	}
	a.line.buf = b
	err := writeAt(fd, b, off)
	switch {
	case err != nil: // half a record would be no lock any more
		truncate(fd, size)
	case size > maxRecord:
		truncate(fd, off+int64(len(b)))
	}
	return err
}

// mark tells others that somebody waits, unless one who came earlier has said so, and
// reports whether it is the first to tell this holder. It writes to nothing but a lock.
func (a *attempt) mark() (first bool, err error) {
	a.yieldUntil = time.Time{}
	rec, _, err := read(a.main.fd)
	if errors.Is(err, errRemoved) {
		return false, nil // its holder is still to be waited for
	}
	now := time.Now()
	if err != nil || rec.awaited(a.arrived, now) {
		return false, err
	}
	// After the clock was set back, the present would seem to be before this holder.
	err = a.writeMark(max(now.UnixMicro(), rec.since), a.arrived)
	return err == nil && rec.waited < rec.since, err
}

// unmark takes back what mark has said: nobody need make way for c.
func (c *claim) unmark() {
	if c.main.fd < 0 {
		return
	}
	if rec, _, err := read(c.main.fd); err == nil && rec.first == c.arrived {
		_ = c.writeMark(0, 0)
	}
}

// isAwaited reports whether somebody was refused since c has the lock.
func (c *claim) isAwaited() bool {
	var mark [markSize]byte
	n, err := readAt(c.main.fd, mark[:], 0)
	if err != nil {
		return true
	}
	rec, err := parse(mark[:n])
	return err != nil || rec.waited >= c.since
}

func (c *claim) writeMark(waited, first int64) error {
	return writeAt(c.main.fd, appendMark(make([]byte, 0, markSize), waited, first), 0)
}

// encode returns Info as JSON. A Client's claims mostly share it.
func (d *fileDriver) encode(info *driver.Info) []byte {
	if last := d.lastInfo.Load(); last != nil && last.info == *info {
		return last.text
	}
	text, _ := json.Marshal(info) // strings and a number can always be
	d.lastInfo.Store(&encodedInfo{*info, text})
	return text
}

type encodedInfo struct {
	info driver.Info
	text []byte
}
