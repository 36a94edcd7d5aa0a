package fence

import (
	"io/fs"
	"os"
)

// modeOfFence returns the permissions of a fence. A class of users gets it only if it can write the
// file, which means to replace it in its directory, because whoever can open a fence can lock it and
// block all writers. A sticky directory lets only the owner replace a file.
func modeOfFence(perm, dir fs.FileMode) fs.FileMode {
	mode := fs.FileMode(0o600)
	if dir&fs.ModeSticky != 0 {
		return mode
	}
	both := perm & dir
	if both&0o020 != 0 {
		mode |= 0o060
	}
	if both&0o002 != 0 {
		mode |= 0o006
	}
	return mode
}

// widen gives a fence at least this mode, whatever the umask is. Only its owner can; for another
// user, who has opened it, it is wide enough.
func widen(f *os.File, now, mode fs.FileMode) {
	if now.Perm()&mode != mode {
		_ = f.Chmod(now.Perm() | mode)
	}
}
