package server

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestSpoolLeavesRoom: an import takes at most half of what is free, whether it says how long it is or not.
func TestSpoolLeavesRoom(t *testing.T) {
	const size = 4 * spoolLook
	for _, tc := range []struct {
		reason      string
		expect      int64
		room        int64 // at the beginning
		others      int64 // is written by others for each byte of ours
		known, fits bool  // known: refused before it is written
	}{
		{"there is room", size, 2 * size, 0, false, true},
		{"one byte less", size, 2*size - 1, 0, true, false},
		{"it does not say how much comes, and there is room", -1, 2 * size, 0, false, true},
		{"it does not say how much comes", -1, size, 0, false, false},
		{"others fill the disk meanwhile", size, 2 * size, 2, false, false},
	} {
		s, err := newSpool(t.TempDir())
		must(t, err)
		s.room = func() (int64, error) { return tc.room - s.written*(1+tc.others), nil }
		err = s.expect(tc.expect)
		if (err != nil) != tc.known {
			t.Errorf("%s: before it is written: %v", tc.reason, err)
		}
		if err == nil {
			_, err = io.Copy(s, io.LimitReader(zeros{}, size))
		}
		if (err == nil) != tc.fits || err != nil && !strings.Contains(err.Error(), "room for") {
			t.Errorf("%s: %v", tc.reason, err)
		}
		if !tc.fits && s.written > size*3/4 {
			t.Errorf("%s: %d bytes were written of %d", tc.reason, s.written, size)
		}
		must(t, s.file.Close())
	}
	s, err := newSpool(t.TempDir())
	must(t, err)
	defer s.file.Close()
	if room, err := s.room(); room <= 0 || err != nil {
		t.Errorf("of a real disk: %d, %v", room, err)
	}
	if _, err := io.Copy(s, iotest.ErrReader(errors.New("gone"))); err == nil {
		t.Error("what did not come is there")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
