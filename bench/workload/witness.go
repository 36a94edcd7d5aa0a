package workload

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// A witness sees whether holders overlap. It is a word in a file that all contenders
// map into their memory, so that it sees processes as well as goroutines. Holders set
// it while they are inside.
type witness struct {
	memory []byte
	owner  *atomic.Int64 // the client inside; 0 is none
}

const witnessSize = 8

func openWitness(path string) (*witness, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	if err := f.Truncate(witnessSize); err != nil {
		return nil, err
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, witnessSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(errors.New("map the witness"), err)
	}
	return &witness{m, (*atomic.Int64)(unsafe.Pointer(&m[0]))}, nil //nolint:gosec // a page is aligned
}

// enter reports whether another client is inside.
func (w *witness) enter(who int64) (overlap bool) { return w.owner.Swap(who) != 0 }

// leave lets go of what is one's own: whoever overlaps has taken it over.
func (w *witness) leave(who int64) { w.owner.CompareAndSwap(who, 0) }

func (w *witness) close() error { return syscall.Munmap(w.memory) }

// identity is unlike that of any other contender, here or in another process.
func identity(contender int) int64 { return int64(os.Getpid())<<24 | int64(contender+1) }
