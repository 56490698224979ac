package backupfile

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"atoll.dev/atoll/internal/checkedfile"
)

const (
	// form is the version of the file's own layout. Raise it when an older binary would misread a newer file.
	form = 1

	headerName  = "atoll-backup.json"
	keysFolder  = "pki/"
	storeFolder = "etcd/"
	storePart   = storeFolder + "snapshot-%06d"
	partSize    = 4 << 20 // bytes of the store in one entry of the archive, and so in memory
)

var kind = checkedfile.Kind{
	Begin: headerName + "\x00", End: "atoll-backup-sha256:",
	Other: "no backup of Atoll: give a file that `atoll backup` wrote", Again: "take another backup",
}

// Header says what a backup holds.
type Header struct {
	// Form is the version of the file's layout; Write sets it.
	Form int `json:"form"`
	// Created is when the backup began, by the server's clock.
	Created time.Time `json:"created"`
	// Server is the URL at which the server was reached; empty for one that did not run.
	Server string `json:"server,omitempty"`
	// StoreFormat is the version of the layout of the store.
	StoreFormat int `json:"storeFormat"`
	// Revision of the store when the backup began: every write acknowledged until then is in it.
	Revision int64 `json:"revision"`
}

// Key is a file of the directory of keys.
type Key struct {
	// Name is its path below that directory, with slashes.
	Name string
	Data []byte
}

// Write writes a backup: h, the keys, and the store until it ends. What is written after an error is no backup, and Open
// knows it.
func Write(w io.Writer, h Header, keys []Key, store io.Reader) error {
	sum := sha256.New()
	archive := tar.NewWriter(io.MultiWriter(w, sum))
	put := func(name string, data []byte) error {
		entry := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(data)), ModTime: h.Created, Format: tar.FormatUSTAR}
		// Whole seconds: USTAR has no others, and no records before the name that begins the file.
		entry.ModTime = entry.ModTime.Truncate(time.Second)
		if err := archive.WriteHeader(entry); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if _, err := archive.Write(data); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return nil
	}
	h.Form = form
	header, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	if err := put(headerName, append(header, '\n')); err != nil {
		return err
	}
	for _, k := range keys {
		if err := put(keysFolder+k.Name, k.Data); err != nil {
			return err
		}
	}
	part := make([]byte, partSize)
	for i := 0; ; i++ {
		n, err := io.ReadFull(store, part)
		if n > 0 {
			if err := put(fmt.Sprintf(storePart, i), part[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the store: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	if _, err := io.WriteString(w, kind.LastLine(sum)); err != nil {
		return fmt.Errorf("write the checksum: %w", err)
	}
	return nil
}
