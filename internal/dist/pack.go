package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// pack writes the files of dir to an archive: sorted, with one time and without users, so that the
// same files give the same bytes.
func pack(archive, dir string, at time.Time) (err error) {
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	switch {
	case strings.HasSuffix(archive, ".zip"):
		return packZip(out, dir, at)
	case strings.HasSuffix(archive, ".tar.gz"):
		z, err := gzip.NewWriterLevel(out, gzip.BestCompression)
		if err != nil {
			return err
		}
		return errors.Join(packTar(z, dir, at), z.Close())
	case strings.HasSuffix(archive, ".tar"):
		return packTar(out, dir, at)
	}
	return fmt.Errorf("%s: not a .zip, .tar.gz or .tar", archive)
}

func packTar(w io.Writer, dir string, at time.Time) error {
	out := tar.NewWriter(w)
	err := eachFile(dir, func(name string, info fs.FileInfo, content io.Reader) error {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: name, ModTime: at, Mode: permOf(info), Format: tar.FormatPAX}
		if !info.IsDir() {
			header.Typeflag, header.Size = tar.TypeReg, info.Size()
		}
		if err := out.WriteHeader(header); err != nil || info.IsDir() {
			return err
		}
		_, err := io.Copy(out, content)
		return err
	})
	return errors.Join(err, out.Close())
}

func packZip(w io.Writer, dir string, at time.Time) error {
	out := zip.NewWriter(w)
	err := eachFile(dir, func(name string, info fs.FileInfo, content io.Reader) error {
		header := &zip.FileHeader{Name: name, Modified: at, Method: zip.Deflate}
		header.SetMode(fs.FileMode(permOf(info)))
		if info.IsDir() {
			return nil // the names of the files have it
		}
		f, err := out.CreateHeader(header)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return err
	})
	return errors.Join(err, out.Close())
}

// permOf is the mode of a file, whatever the umask was when it was made.
func permOf(info fs.FileInfo) int64 {
	switch {
	case info.Mode()&fs.ModeSticky != 0:
		return 0o1777
	case info.IsDir(), info.Mode()&0o100 != 0:
		return 0o755
	}
	return 0o644
}

// eachFile calls f with the files and directories below dir, in order.
func eachFile(dir string, f func(name string, info fs.FileInfo, content io.Reader) error) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			return f(name+"/", info, nil)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		content, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f(name, info, content), content.Close())
	})
}

// writeSums writes the SHA-256 sum of each file with its name.
func writeSums(w io.Writer, files []string) error {
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(content), filepath.Base(name)); err != nil {
			return err
		}
	}
	return nil
}
