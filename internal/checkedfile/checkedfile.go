// Package checkedfile is what files of Atoll that leave the machine have in common: they begin as their kind does and end
// with a line that holds the SHA-256 of all before it, so that a cut or damaged one is known before anything is done with it.
//
// It only reads. The files are those of internal/backupfile and internal/workspacefile.
package checkedfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Kind is a kind of such files.
type Kind struct {
	// Begin is how one begins, and End how its last line does.
	Begin, End string
	// Other completes "is ..." for a file of no such kind, and Again "copy it again from where it was kept, or ...".
	Other, Again string
}

// endSize of the last line, in bytes.
func (k Kind) endSize() int64 { return int64(len(k.End)) + 2*sha256.Size + 1 }

// LastLine is the line that ends a file with that checksum of what is before.
func (k Kind) LastLine(sum hash.Hash) string { return k.End + hex.EncodeToString(sum.Sum(nil)) + "\n" }

// Check reads all of a file of that size, and returns what is before its last line. Its errors follow the name of the file,
// and say what to do.
func (k Kind) Check(file io.ReaderAt, size int64) (*io.SectionReader, error) {
	first := make([]byte, len(k.Begin))
	if _, err := file.ReadAt(first, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if string(first) != k.Begin {
		return nil, fmt.Errorf("is %s", k.Other)
	}
	cutOff := "is cut off, or its end is damaged: copy it again from where it was kept, or " + k.Again
	if size <= k.endSize() {
		return nil, errors.New(cutOff)
	}
	last := make([]byte, k.endSize())
	if _, err := file.ReadAt(last, size-k.endSize()); err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	want, begins := bytes.CutPrefix(last, []byte(k.End))
	want, ends := bytes.CutSuffix(want, []byte("\n"))
	if !begins || !ends {
		return nil, errors.New(cutOff)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, size-k.endSize())); err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != string(want) {
		return nil, fmt.Errorf("is damaged: the checksum of what it holds is %s, and it was written with %s: copy it again from where it was kept, or %s", got, want, k.Again)
	}
	return io.NewSectionReader(file, 0, size-k.endSize()), nil
}
