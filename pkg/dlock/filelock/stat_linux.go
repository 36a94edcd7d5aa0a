package filelock

import "golang.org/x/sys/unix"

// lookAt does not ask for the times of a file. Linux would then have to give the next write its own
// timestamp, which costs more than the rest of the write.
func lookAt(fd int) (fileState, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_NLINK|unix.STATX_SIZE, &st)
	if err != nil { // an old kernel, or a sandbox
		return fstat(fd)
	}
	return judge(int64(st.Size), uint64(st.Nlink), uint32(st.Mode)), nil
}
