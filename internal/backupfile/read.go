package backupfile

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxKeySize of one file of the directory of keys, in bytes: a thousand certificates.
const maxKeySize = 2 << 20

// File is a backup whose checksum was found right.
type File struct {
	Header
	// Size in bytes.
	Size int64

	file    *os.File
	content *io.SectionReader // without the checksum
}

// Open opens a backup and reads all of it to compare the checksum. Its errors name the file and say what to do.
func Open(path string) (_ *File, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the backup: %w", err)
	}
	b := &File{file: file}
	defer func() {
		if err != nil {
			_ = file.Close() // it was only read
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the backup: %w", err)
	}
	b.Size = info.Size()
	if b.content, err = kind.Check(file, b.Size); err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	if b.Header, err = b.header(); err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return b, nil
}

// Close closes the file.
func (b *File) Close() error { return b.file.Close() }

func (b *File) archive() *tar.Reader {
	return tar.NewReader(io.NewSectionReader(b.content, 0, b.content.Size()))
}

func (b *File) header() (h Header, err error) {
	archive := b.archive()
	if _, err := archive.Next(); err != nil {
		return h, fmt.Errorf("cannot be read: %w", err)
	}
	if err := json.NewDecoder(archive).Decode(&h); err != nil {
		return h, fmt.Errorf("cannot be read: %s: %w", headerName, err)
	}
	if h.Form != form {
		return h, fmt.Errorf("has the form %d, and this program knows %d: restore it with the version of atoll that wrote it, or a newer one", h.Form, form)
	}
	return h, nil
}

// Read passes on what the backup holds, in the order of the file: the keys, and the snapshot of the store piece by piece.
func (b *File) Read(key func(Key) error, store func(io.Reader) error) error {
	archive, parts := b.archive(), 0
	for {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the backup: %w", err)
		}
		switch name, isKey := strings.CutPrefix(entry.Name, keysFolder); {
		case entry.Name == headerName:
		case isKey:
			if !filepath.IsLocal(name) || entry.Typeflag != tar.TypeReg || entry.Size > maxKeySize {
				return fmt.Errorf("read the backup: %q is no key or certificate", entry.Name)
			}
			data, err := io.ReadAll(archive)
			if err != nil {
				return fmt.Errorf("read the backup: %s: %w", entry.Name, err)
			}
			if err := key(Key{Name: name, Data: data}); err != nil {
				return err
			}
		case entry.Name == fmt.Sprintf(storePart, parts):
			parts++
			if err := store(archive); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read the backup: unexpected %q", entry.Name)
		}
	}
	if parts == 0 {
		return errors.New("read the backup: it holds no snapshot of the store")
	}
	return nil
}
