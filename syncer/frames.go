package syncer

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Types of SPDY/3.1 control frames, as its draft numbers them.
const (
	frameSynStream = 1
	framePing      = 6
	frameHeaders   = 8
)

// mostOfData and mostOfControl bound what a frame of a stream holds, in bytes: who reads it makes room for all of it at once, and for many of them.
// A kubelet writes some ten KiB at a time.
const (
	mostOfData    = 1 << 20
	mostOfControl = 64 << 10
)

// spdyFrames is a connection that speaks SPDY, of whose frames that come in only those go on that a kubelet answers with. The server reads them
// with a library that trusts who writes: what it asks for with a length is made room for, streams that others open are kept, and a ping that
// is answered twice ends the process.
type spdyFrames struct {
	io.ReadWriteCloser
	head  []byte // of the frame, as far as it is to be read yet
	rest  int64  // of the frame, after its head
	pings uint32 // the last of ours that was answered
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
		f.head, f.rest = head, length
		return nil
	}
	switch kind := binary.BigEndian.Uint16(head[2:]); {
	case kind == frameSynStream || kind == frameHeaders:
		return refuse(fmt.Sprintf("a frame of type %d, which no kubelet sends", kind))
	case length > mostOfControl:
		return refuse(fmt.Sprintf("a frame of type %d holds %d bytes, want at most %d", kind, length, mostOfControl))
	case kind == framePing && length != 4:
		return refuse(fmt.Sprintf("a ping of %d bytes, want 4", length))
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

// CloseWrite says that nothing more is written, where the connection can tell.
func (f *spdyFrames) CloseWrite() error {
	if half, ok := f.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
