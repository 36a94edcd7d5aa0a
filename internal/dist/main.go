// Command dist makes the files that are shipped with the command dlock. scripts/dist and the
// release call it:
//
//   - docs DIR writes the man pages and the completion scripts of dlock.
//   - pack ARCHIVE DIR makes DIR a .tar.gz, .tar or .zip, the same bytes for the same files.
//   - sbom BINARY FILE lists the modules in a Go binary, as CycloneDX. DLOCK_VERSION is its
//     version where Go has not stamped one.
//   - notices PACKAGE FILE writes the licences of all modules that a command links.
//   - sums FILE [FILE]… prints SHA-256 sums, as sha256sum does.
//
// Archives and man pages have the time that SOURCE_DATE_EPOCH says.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	at, err := sourceTime(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "docs":
		return writeDocs(args[1], at)
	case len(args) == 3 && args[0] == "pack":
		return pack(args[1], args[2], at)
	case len(args) == 3 && args[0] == "sbom":
		return writeSBOM(args[1], args[2], os.Getenv("DLOCK_VERSION"), at)
	case len(args) == 3 && args[0] == "notices":
		return writeNotices(args[1], args[2])
	case len(args) > 1 && args[0] == "sums":
		return writeSums(os.Stdout, args[1:])
	}
	return errors.New("usage: dist docs DIR | pack ARCHIVE DIR | sbom BINARY FILE | notices PACKAGE FILE | sums FILE [FILE]…")
}

// sourceTime is the time of all files, by default the start of the archive formats' time.
func sourceTime(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%q is not a number of seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
