package etcdlock

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Name is how a lock is called in etcd, behind the Prefix of its Client: key with
// '/' and '%' escaped as in URLs, so that no name is a directory of another. It is
// the name to give to concurrency.NewMutex or to etcdctl lock:
//
//	concurrency.NewMutex(session, prefix+etcdlock.Name(key))
func Name(key string) string { return escaper.Replace(key) }

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

// keyOf is the inverse of Name; ok is false for what Name never returns.
func keyOf(name string) (key string, ok bool) {
	key = unescaper.Replace(name)
	return key, key != "" && Name(key) == name
}

// lineOf is what the keys of all claims on a lock begin with.
func (d *etcdDriver) lineOf(key string) string { return d.prefix + Name(key) + "/" }

// ownKey is where a claim is stored: this driver's name and a number that no other
// claim of it on the same lock has now. Keys are used again and again, since etcd
// goes through every key that ever was in a line, until it is compacted.
func (d *etcdDriver) ownKey(key string, number int) string {
	return d.lineOf(key) + d.me + mark + strconv.Itoa(number)
}

// mark is in the keys of our claims.
const mark = "-dlock"

// isOurs reports whether a key in a line is that of a claim of this driver.
func (d *etcdDriver) isOurs(line, own string) bool { return strings.HasPrefix(own, line+d.me+mark) }

// numbers are the numbers of claims on one lock.
type numbers struct {
	next int
	free []int
	lost []lostNumber
}

// A lostNumber is not used again until then: something may yet arrive that deletes
// whatever has it.
type lostNumber struct {
	number int
	until  time.Time
}

// number takes the lowest number that is free, or nearly so. It runs under mu.
func (d *etcdDriver) number(key string) int {
	n := d.numbers[key]
	if n == nil {
		n = &numbers{}
		d.numbers[key] = n
	}
	if last := len(n.free) - 1; last >= 0 {
		number := n.free[last]
		n.free = n.free[:last]
		return number
	}
	n.next++
	return n.next - 1
}

// giveNumber takes back the number of a claim that is gone. It runs under mu.
func (d *etcdDriver) giveNumber(c *claim) {
	n := d.numbers[c.key]
	if c.tainted {
		n.lost = append(n.lost, lostNumber{c.number, time.Now().Add(driver.BarFor(c.lease.ttl))})
	} else {
		n.free = append(n.free, c.number)
	}
	if len(n.free) == n.next {
		delete(d.numbers, c.key)
	}
}

// findNumbers takes back the lost numbers whose time has passed. It runs under mu.
func (d *etcdDriver) findNumbers(now time.Time) {
	for key, n := range d.numbers {
		n.lost = slices.DeleteFunc(n.lost, func(l lostNumber) bool {
			found := now.After(l.until)
			if found {
				n.free = append(n.free, l.number)
			}
			return found
		})
		if len(n.free) == n.next {
			delete(d.numbers, key)
		}
	}
}

// barKey is there if an ID must not be filed any more. It is no name of a lock:
// there, a '%' is followed by other letters.
func (d *etcdDriver) barKey(id string) string { return d.prefix + "%bar/" + id }

// sift returns the claims among the keys below the name of a lock, ours and those
// of a concurrency.Mutex, and leaves out other data that somebody keeps there. The
// key of a Mutex is its lease and nothing else, so it takes a whole read to know
// one: sure is false if keys alone, which come without leases, were not enough.
func sift(line string, kvs []*mvccpb.KeyValue, whole bool) (claims []*mvccpb.KeyValue, sure bool) {
	claims, sure = make([]*mvccpb.KeyValue, 0, len(kvs)), true
	for _, kv := range kvs {
		name, number, ours := strings.Cut(strings.TrimPrefix(string(kv.Key), line), mark)
		switch {
		case !isHex(name) || len(name) > 16:
		case ours && isNumber(number), !ours && kv.Lease != 0 && name == strconv.FormatInt(kv.Lease, 16):
			claims = append(claims, kv)
		case !ours && !whole:
			sure = false
		}
	}
	return claims, sure
}

func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
