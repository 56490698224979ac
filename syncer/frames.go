package syncer

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Types of SPDY/3.1 control frames that kubelets send, as its draft numbers them.
const (
	frameSynReply  = 2
	frameRstStream = 3
	framePing      = 6
	frameGoAway    = 7
)

// mostOfData bounds what a frame of a stream holds, in bytes: who reads it makes room for all of it at once. Data goes on in pieces of
// mostOfPiece at most: of those 50 are kept for each stream that nobody reads. A kubelet writes some ten KiB at a time.
const (
	mostOfData  = 1 << 20
	mostOfPiece = 16 << 10
)

// controlTakes is how many bytes the control frames hold, at least and at most. Who reads some reads so much of them whatever they say, and takes the
// rest for frames. A reply has headers, which are compressed: a kubelet sends none, in some 20 bytes, and what fits here unpacks to 64 KiB at most.
var controlTakes = map[uint16][2]int64{frameSynReply: {10, 64}, frameRstStream: {8, 8}, framePing: {4, 4}, frameGoAway: {8, 8}}

// spdyFrames is a connection that speaks SPDY, of whose frames that come in only those go on that a kubelet answers with. The server reads them
// with a library that trusts who writes: what it asks for with a length is made room for, headers are unpacked to whatever size, streams that others open are
// kept, and a ping that is answered twice ends the process.
type spdyFrames struct {
	io.ReadWriteCloser
	head  []byte  // of the frame, as far as it is to be read yet
	rest  int64   // of the frame, after its head
	data  [5]byte // the stream of a data frame, and its flags, while it goes on in pieces
	left  int64   // of that, after the piece that is read now
	pings uint32  // the last of ours that was answered
}

// spdyOf returns the frames of a connection that has switched to a protocol, and any other connection as it is.
func spdyOf(conn io.ReadWriteCloser, protocol string) io.ReadWriteCloser {
	if !strings.EqualFold(protocol, "SPDY/3.1") {
		return conn
	}
	return &spdyFrames{ReadWriteCloser: conn}
}

func (f *spdyFrames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.head) == 0 && f.rest == 0 {
		if f.left > 0 {
			f.piece()
			continue
		}
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.head) > 0 {
		n := copy(p, f.head)
		f.head = f.head[n:]
		return n, nil
	}
	n, err := f.ReadWriteCloser.Read(p[:min(int64(len(p)), f.rest)])
	f.rest -= int64(n)
	return n, err
}

// next reads the head of a frame: of a ping all of it, which is skipped if it was answered before.
func (f *spdyFrames) next() error {
	head := make([]byte, 8, 12)
	if _, err := io.ReadFull(f.ReadWriteCloser, head); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(head[4:]) & 0xffffff)
	refuse := func(what string) error { return fmt.Errorf("read a stream of a physical cluster: %s", what) }
	if isData := head[0]&0x80 == 0; isData {
		if length > mostOfData {
			return refuse(fmt.Sprintf("a frame holds %d bytes, want at most %d", length, mostOfData))
		}
		copy(f.data[:], head)
		f.left = length
		f.piece()
		return nil
	}
	kind := binary.BigEndian.Uint16(head[2:])
	switch takes, sent := controlTakes[kind]; {
	case !sent:
		return refuse(fmt.Sprintf("a frame of type %d, which no kubelet sends", kind))
	case length < takes[0] || length > takes[1]:
		return refuse(fmt.Sprintf("a frame of type %d holds %d bytes, want %d to %d", kind, length, takes[0], takes[1]))
	case kind == framePing:
		head = head[:12]
		if _, err := io.ReadFull(f.ReadWriteCloser, head[8:]); err != nil {
			return err
		}
		id := binary.BigEndian.Uint32(head[8:])
		if ours := id%2 == 1; ours && id <= f.pings {
			return nil
		} else if ours {
			f.pings = id
		}
		f.head = head
		return nil
	}
	f.head, f.rest = head, length
	return nil
}

// piece begins the next piece of a data frame: what its flags say, such as that the stream ends with it, the last one says.
func (f *spdyFrames) piece() {
	f.rest = min(f.left, mostOfPiece)
	f.left -= f.rest
	head := binary.BigEndian.AppendUint32(f.data[:4:4], uint32(f.rest)) //nolint:gosec // bounded just now
	if f.left == 0 {
		head[4] = f.data[4]
	}
	f.head = head
}

// CloseWrite says that nothing more is written, where the connection can tell.
func (f *spdyFrames) CloseWrite() error {
	if half, ok := f.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
