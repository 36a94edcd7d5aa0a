package filelock

var (
	JudgeMagic  = judgeMagic
	ParseEvents = parseEvents
)

// CreateVisibly creates a file of a shared directory where there is no better way.
func CreateVisibly(path, name string) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	defer closeFile(fd)
	f, err := createVisibly(&directory{fd: fd, path: path, perm: sharedPerm}, name)
	if err == nil {
		closeFile(f)
	}
	return err
}
