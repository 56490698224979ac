package server

import (
	"fmt"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// spoolLook is after how many bytes a spool looks again how much room there is.
const spoolLook = 1 << 20

// spool is a file without a name that leaves at least as much room on its disk as it takes: an embedded etcd has its data
// there, and ends when the disk is full.
type spool struct {
	file *os.File
	// room on the disk, in bytes, now.
	room            func() (int64, error)
	written, looked int64
}

// newSpool makes one in a directory.
func newSpool(directory string) (*spool, error) {
	file, err := os.CreateTemp(directory, "import-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make a file for what arrives: %w", err)
	}
	// Nothing of it is left however this ends.
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // nobody reads it
		return nil, fmt.Errorf("make a file for what arrives: %w", err)
	}
	return &spool{file: file, room: func() (int64, error) { return roomIn(directory) }}, nil
}

// roomIn is how many bytes may be written to the disk that a directory is on.
func roomIn(directory string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return 0, fmt.Errorf("see how much room is in %s: %w", directory, err)
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil
}

// expect refuses what is known to be too much; size is -1 where it is not known.
func (s *spool) expect(size int64) error {
	room, err := s.room()
	if err == nil && size > room/2 {
		err = noRoom(size, room/2)
	}
	return err
}

func (s *spool) Write(p []byte) (int, error) {
	if s.written-s.looked >= spoolLook {
		s.looked = s.written
		room, err := s.room()
		if err == nil && s.written > room {
			err = noRoom(s.written, room)
		}
		if err != nil {
			return 0, err
		}
	}
	n, err := s.file.Write(p)
	s.written += int64(n)
	return n, err
}

func noRoom(size, room int64) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Message: fmt.Sprintf(
			"the file has %d bytes or more, and the server's disk, which has the store, room for %d: nothing was made; make room in --root-directory", size, room),
	}}
}
