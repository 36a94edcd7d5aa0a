package etcdlock

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Name returns the name of a lock in etcd, without the Prefix of its Client: key with '/' and '%'
// escaped as in URLs, so that no name is a directory of another. It is the name to pass to
// concurrency.NewMutex or to etcdctl lock:
//
//	concurrency.NewMutex(session, prefix+etcdlock.Name(key))
func Name(key string) string { return escaper.Replace(key) }

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

// keyOf is the inverse of Name; ok is false for a name that Name never returns.
func keyOf(name string) (key string, ok bool) {
	key = unescaper.Replace(name)
	return key, key != "" && Name(key) == name
}

// prefixOf returns the common prefix of the keys of all claims on a lock.
func (d *etcdDriver) prefixOf(key string) string { return d.prefix + Name(key) + "/" }

// A kind is how a claim shares its lock. It is part of the claim's key, so that a read of keys shows
// who shares the lock with whom.
type kind struct {
	mode  driver.Mode
	limit int // of a permit
}

func kindOf(r *driver.Request) kind { return kind{r.Mode, r.Limit} }

// part returns what the keys of this kind begin with, after the name of the lock. The keys of writers
// and of other programs begin with a hexadecimal digit, which is less than all of these.
func (k kind) part() string {
	switch k.mode {
	case driver.Shared:
		return "r-"
	case driver.Permit:
		return "p" + strconv.Itoa(k.limit) + "-"
	default:
		return ""
	}
}

// partEnd is greater than all keys that begin with a part. lastPart is the greatest part.
func partEnd(part string) string { return part[:len(part)-1] + string(part[len(part)-1]+1) }

const lastPart = "r-"

// cutKind returns the kind of a claim and the rest of its key, given what follows the name of the lock.
func cutKind(text string) (k kind, rest string) {
	if rest, ok := strings.CutPrefix(text, kind{mode: driver.Shared}.part()); ok {
		return kind{mode: driver.Shared}, rest
	}
	number, rest, ok := strings.Cut(text, "-")
	if number, isPermit := strings.CutPrefix(number, "p"); ok && isPermit {
		limit, err := strconv.Atoi(number)
		if err == nil && limit > 0 && strconv.Itoa(limit) == number {
			return kind{driver.Permit, limit}, rest
		}
	}
	return kind{}, text
}

// joins reports whether a claim of this kind may hold a lock together with n claims of the kind k.
func (k kind) joins(other kind, n int) bool {
	return k == other && (k.mode == driver.Shared || (k.mode == driver.Permit && n < k.limit))
}

// ownKey returns where a claim is stored: its kind, this driver's name and a number that no other claim
// of this driver on the same lock has now. Keys are reused, because etcd iterates over every key that
// ever was in a queue until it is compacted.
func (d *etcdDriver) ownKey(key string, k kind, number int) string {
	return d.prefixOf(key) + k.part() + d.me + mark + strconv.Itoa(number)
}

// mark is part of the keys of this library's claims.
const mark = "-dlock"

// isOurs reports whether a key in a queue belongs to a claim of this driver.
func (d *etcdDriver) isOurs(prefix, own string) bool {
	text, ok := strings.CutPrefix(own, prefix)
	_, rest := cutKind(text)
	return ok && strings.HasPrefix(rest, d.me+mark)
}

// numbers manages the numbers of the claims on one lock.
type numbers struct {
	next int
	free []int
	lost []lostNumber
}

// A lostNumber is not reused until that time: a delete of its key may still arrive.
type lostNumber struct {
	number int
	until  time.Time
}

// number reuses the number that was freed last, or takes the next unused one. The caller holds mu.
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

// giveNumber frees the number of a claim that is gone. The caller holds mu.
func (d *etcdDriver) giveNumber(c *claim) {
	n := d.numbers[c.key]
	if c.tainted {
		n.lost = append(n.lost, lostNumber{c.number, time.Now().Add(driver.TombstoneTTL(c.lease.ttl))})
	} else {
		n.free = append(n.free, c.number)
	}
	if len(n.free) == n.next {
		delete(d.numbers, c.key)
	}
}

// findNumbers frees the lost numbers whose time has passed. The caller holds mu.
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

// tombstoneKey returns the key that exists if an ID must not be submitted any more. It cannot be
// the name of a lock: in a name, other letters follow a '%'.
func (d *etcdDriver) tombstoneKey(id string) string { return d.prefix + "%tombstone/" + id }

// sift returns the claims among the keys below the name of a lock, those of this library and those
// of a concurrency.Mutex, and omits other data stored there. The key of a Mutex consists only of
// its lease ID, so recognizing it needs a whole read: sure is false if keys alone, which come
// without leases, were not enough.
func sift(prefix string, kvs []*mvccpb.KeyValue, whole bool) (claims []*mvccpb.KeyValue, sure bool) {
	claims, sure = make([]*mvccpb.KeyValue, 0, len(kvs)), true
	for _, kv := range kvs {
		k, rest := cutKind(strings.TrimPrefix(string(kv.Key), prefix))
		name, number, ours := strings.Cut(rest, mark)
		switch {
		case !isHex(name) || len(name) > 16 || (!ours && k != kind{}):
		case ours && isNumber(number), !ours && kv.Lease != 0 && name == strconv.FormatInt(kv.Lease, 16):
			claims = append(claims, kv)
		case !ours && !whole:
			sure = false
		}
	}
	return claims, sure
}

// holding returns how many of the first claims of a queue hold the lock. A claim that holds it once does
// so until it is gone: no claim is ever added before it.
func holding(prefix string, claims []*mvccpb.KeyValue) (n int) {
	var first kind
	for _, kv := range claims {
		k, _ := cutKind(strings.TrimPrefix(string(kv.Key), prefix))
		if n == 0 {
			first = k
		} else if !k.joins(first, n) {
			break
		}
		n++
	}
	return n
}

func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
