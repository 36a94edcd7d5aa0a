package filelock

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// read returns the figures in an open file, and its size. The size is 0 if the file has no content
// that counts.
func read(fd int) (record, int64, error) {
	st, err := lookAt(fd)
	switch {
	case err != nil:
		return record{}, 0, err
	case st.removed:
		return record{}, 0, errRemoved
	case st.odd:
		return record{}, 0, ErrInsecureDir
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

// onlyZeros returns ErrNotALock if a file contains anything but zeros, or is longer than a record:
// a file that begins with zeros may be the data of another program.
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

// stale is how long a file is assumed to be at its path. A removed file is noticed at once; a file
// that was moved away is noticed only by a check of the path.
const stale = time.Second

// readMain reads the lock file.
func (a *attempt) readMain() (record, int64, error) {
	if a.phase == driver.Queued || a.now.Sub(a.main.seen) > stale {
		here, err := isAt(a.main.fd, pathIn(a.dir.path, a.queue.base+lockSuffix))
		if err != nil {
			return record{}, 0, err
		}
		if !here {
			return record{}, 0, errRemoved
		}
		a.main.seen = a.now
	}
	return a.readRecord()
}

// readRecord is read of the lock file. A Store of one file refuses a record that another program has
// appended to, such as a PID: a write would destroy that.
func (a *attempt) readRecord() (record, int64, error) {
	rec, size, err := read(a.main.fd)
	if err == nil && a.store.only != nil {
		err = endsWithRecord(a.main.fd, size)
	}
	return rec, size, err
}

// endsWithRecord returns ErrNotALock if anything but blank lines follows a record. Zeros may follow as
// well, which a power failure may leave.
func endsWithRecord(fd int, size int64) error {
	if size <= int64(headSize) {
		return nil
	}
	if size > maxRecord {
		return ErrNotALock
	}
	buf := make([]byte, size)
	n, err := readAt(fd, buf, 0)
	if err != nil || n <= headSize {
		return err
	}
	holder, rest, _ := bytes.Cut(bytes.TrimRight(buf[headSize:n], "\n\x00"), []byte("\n"))
	return notALock(len(rest) == 0 && (len(holder) == 0 || holder[0] == '{'))
}

// write writes everything except the mark of the waiters, and overwrites the rest of a longer
// record with blanks. A file that is longer than any record is truncated instead: another user may
// have made it so, and filling it would cost memory and disk space of that size. In a Store of one
// file, it also writes the mark that was read: a script that opens the file with 9> may have emptied
// it since, without a lock, and zeros would take the place of the mark.
func (a *attempt) write(fd int, rec *record, size int64, named bool) error {
	b := a.queue.buf[:0]
	off := int64(markSize)
	if size == 0 || a.store.only != nil {
		b, off = appendMark(b, rec.waited, rec.first), 0
	}
	b = rec.appendTo(b)
	head := len(b)
	if named {
		b = appendHolder(b, a.queue.quoted, a.id, a.token, a.encode(&a.info))
	} else {
		b = appendHolder(b, a.queue.quoted, "", 0, nil)
	}
	if named && off+int64(len(b)) > maxRecord { // no reader reads more, and Info is only for people
		b = appendHolder(b[:head], a.queue.quoted, a.id, a.token, nil)
	}
	for size <= maxRecord && int64(len(b))+off < size {
		b = append(b, '\n')
	}
	a.queue.buf = b
	err := writeAt(fd, b, off)
	switch {
	case err != nil: // half a record would be no lock any more
		truncate(fd, size)
	case size > maxRecord:
		truncate(fd, off+int64(len(b)))
	}
	return err
}

// mark records that a claim waits, unless an earlier waiter has already done so. It reports whether
// it is the first mark for this holder. It writes only to a lock. In a Store of one file, an empty file
// stays empty until the lock is taken: the script that holds it may write to it.
func (a *attempt) mark() (first bool, err error) {
	a.yieldUntil = time.Time{}
	rec, size, err := a.readRecord()
	if errors.Is(err, errRemoved) || (err == nil && size == 0 && a.store.only != nil) {
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

// unmark removes the mark of c: other claims need not let c go first.
func (c *claim) unmark() {
	if c.main.fd < 0 {
		return
	}
	if rec, _, err := read(c.main.fd); err == nil && rec.first == c.arrived {
		_ = c.writeMark(0, 0)
	}
}

// isAwaited reports whether another claim was refused since c took the lock.
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

// encode returns Info as JSON. Most claims of a Client share it.
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
