package syncer

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzSPDYFrames: whatever a physical cluster writes, what goes on is frames that a kubelet sends, within their bounds, and the data is
// what was written, to where the first frame is refused.
func FuzzSPDYFrames(f *testing.F) {
	for _, frames := range [][][]byte{
		{data(5, []byte("hello")...), data(0), data(2, 'y', 'o')},
		{control(frameSynReply, 12, 0, 0, 0, 1, 5, 6, 7, 8, 9, 10, 11, 12), ping(1), ping(1), ping(3)},
		{control(frameRstStream, 8, 0, 0, 0, 1, 0, 0, 0, 5), control(frameGoAway, 8, 0, 0, 0, 1, 0, 0, 0, 0)},
		{control(frameSynReply, 65), data(mostOfData + 1)},
		{data(mostOfPiece+1, bytes.Repeat([]byte("x"), mostOfPiece+1)...)},
		{control(1, 10), {0x80, 3}},
	} {
		f.Add(bytes.Join(frames, nil))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := io.ReadAll(spdyOf(readOnly{bytes.NewReader(in)}, "SPDY/3.1"))
		slow, slowErr := io.ReadAll(spdyOf(readOnly{iotest.OneByteReader(bytes.NewReader(in))}, "SPDY/3.1"))
		if !bytes.Equal(out, slow) || (err == nil) != (slowErr == nil) {
			t.Fatalf("it depends on how the bytes come: %d bytes, %v, or %d, %v", len(out), err, len(slow), slowErr)
		}
		if want := passedOf(in); !bytes.Equal(out, want) {
			t.Fatalf("of %x\n%x goes on, want\n%x", in, out, want)
		}
	})
}

// passedOf is what is to go on of all that a physical cluster has written.
func passedOf(in []byte) (passed []byte) {
	next := func(n int) []byte { // or what is left
		n = min(n, len(in))
		taken := in[:n]
		in = in[n:]
		return taken
	}
	answered := uint32(0)
	for len(in) >= 8 {
		head := next(8)
		length := int(binary.BigEndian.Uint32(head[4:]) & 0xffffff)
		if isData := head[0]&0x80 == 0; isData {
			if length > mostOfData {
				break
			}
			for last := false; !last; {
				piece := min(length, mostOfPiece)
				length -= piece
				flags := byte(0)
				if last = length == 0; last {
					flags = head[4]
				}
				passed = append(passed, head[0], head[1], head[2], head[3], flags, byte(piece>>16), byte(piece>>8), byte(piece))
				content := next(piece)
				passed = append(passed, content...)
				if len(content) < piece {
					return passed
				}
			}
			continue
		}
		kind := binary.BigEndian.Uint16(head[2:])
		takes, sent := controlTakes[kind]
		if !sent || int64(length) < takes[0] || int64(length) > takes[1] {
			break
		}
		content := next(length)
		if kind == framePing {
			if len(content) < length {
				break
			}
			id := binary.BigEndian.Uint32(content)
			if ours := id%2 == 1; ours && id <= answered {
				continue
			} else if ours {
				answered = id
			}
		}
		passed = append(append(passed, head...), content...)
	}
	return passed
}
