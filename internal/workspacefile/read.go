package workspacefile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// File is an export whose checksum was found right.
type File struct {
	Header
	// Size in bytes.
	Size int64

	file    *os.File
	content *io.SectionReader // without the checksum
	rows    int64             // where they begin
}

// Open opens an export and reads all of it to compare the checksum. Its errors name the file as name and say what to do.
func Open(path, name string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the export: %w", err)
	}
	f, err := New(file, name)
	if err != nil {
		_ = file.Close() // it was only read
		return nil, err
	}
	return f, nil
}

// New is Open for a file that is open, which the File closes. It is the caller's still if there is an error.
func New(file *os.File, name string) (*File, error) {
	f := &File{file: file}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

func (f *File) check() error {
	info, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	f.Size = info.Size()
	if f.content, err = kind.Check(f.file, f.Size); err != nil {
		return err
	}
	header, err := line(bufio.NewReader(io.NewSectionReader(f.content, 0, f.content.Size())))
	if err != nil {
		return fmt.Errorf("cannot be read: its header: %w", err)
	}
	f.rows = int64(len(header))
	if err := json.Unmarshal(header, &f.Header); err != nil {
		return fmt.Errorf("cannot be read: its header: %w", err)
	}
	if f.Form != form {
		return fmt.Errorf("has the form %d, and this program knows %d: import it with the version of atoll that wrote it, or a newer one", f.Form, form)
	}
	return nil
}

// Rows passes on the rows in the order of the file, each with where it is, for At.
func (f *File) Rows(each func(at int64, r Row) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(f.content, f.rows, f.content.Size()-f.rows), 1<<20)
	for at := f.rows; ; {
		data, err := line(in)
		if errors.Is(err, io.EOF) && len(data) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the export at byte %d: %w", at, err)
		}
		r, err := row(data, at)
		if err != nil {
			return err
		}
		if err := each(at, r); err != nil {
			return err
		}
		at += int64(len(data))
	}
}

// At returns the row at a place that Rows told. Several may read at once.
func (f *File) At(at int64) (Row, error) {
	data, err := line(bufio.NewReader(io.NewSectionReader(f.content, at, f.content.Size()-at)))
	if err != nil {
		return Row{}, fmt.Errorf("read the export at byte %d: %w", at, err)
	}
	return row(data, at)
}

func row(data []byte, at int64) (r Row, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the export at byte %d: %w", at, err)
	}
	return r, nil
}

// line reads one with its end.
func line(in *bufio.Reader) ([]byte, error) {
	var data []byte
	for {
		part, err := in.ReadSlice('\n')
		data = append(data, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return data, err
		}
		if len(data) > maxLine {
			return nil, fmt.Errorf("a line is longer than %d bytes", maxLine)
		}
	}
}
