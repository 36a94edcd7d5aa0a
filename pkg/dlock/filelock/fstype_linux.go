package filelock

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// remote lists the file systems that hosts may share, by the magic number of statfs(2). Some of
// them do lock across hosts, but with mount options that are not visible from here, and through a
// server that loses locks in a crash.
var remote = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "nfs",
	unix.SMB_SUPER_MAGIC:   "smb",
	unix.SMB2_SUPER_MAGIC:  "smb2",
	unix.CIFS_SUPER_MAGIC:  "cifs",
	unix.V9FS_MAGIC:        "9p",
	unix.FUSE_SUPER_MAGIC:  "fuse", // sshfs and GlusterFS, and virtiofs
	unix.CEPH_SUPER_MAGIC:  "ceph",
	unix.OCFS2_SUPER_MAGIC: "ocfs2",
	unix.AFS_SUPER_MAGIC:   "afs",
	unix.AFS_FS_MAGIC:      "afs",
	unix.CODA_SUPER_MAGIC:  "coda",
	unix.NCP_SUPER_MAGIC:   "ncp",
	0x0bd00bd0:             "lustre",
	0x01161970:             "gfs2",
	0x47504653:             "gpfs",
	0x19830326:             "beegfs",
	0x20030528:             "orangefs",
	0xaad7aaea:             "panfs",
	0x786f4256:             "vboxsf",
	0xbacbacbc:             "vmhgfs",
	0x7c7c6673:             "prl_fs",
	0x61636673:             "acfs",
}

// local lists the names of common file systems of one host.
var local = map[uint32]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
}

// fsType returns the name of a directory's file system, and whether it belongs to this host alone.
func fsType(fd int) (name string, isLocal bool, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", false, os.NewSyscallError("fstatfs", err)
	}
	return judgeMagic(uint32(st.Type))
}

func judgeMagic(m uint32) (name string, isLocal bool, err error) {
	if name, ok := remote[m]; ok {
		return name, false, nil
	}
	if name, ok := local[m]; ok {
		return name, true, nil
	}
	return fmt.Sprintf("%#x", m), true, nil
}
