package syncer

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// readOnly is a connection to which nobody writes.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error) { return len(p), nil }
func (readOnly) Close() error                { return nil }

// control is a control frame of SPDY/3.1, of which only so much is there as is given.
func control(kind byte, length int, content ...byte) []byte {
	return append([]byte{0x80, 3, 0, kind, 0, byte(length >> 16), byte(length >> 8), byte(length)}, content...)
}

// ping is one with that id, and its answer.
func ping(id byte) []byte { return control(framePing, 4, 0, 0, 0, id) }

// data is a data frame of stream 1.
func data(length int, content ...byte) []byte {
	return append([]byte{0, 0, 0, 1, 0, byte(length >> 16), byte(length >> 8), byte(length)}, content...)
}

func TestSPDYFrames(t *testing.T) {
	big := bytes.Repeat([]byte("x"), mostOfData)
	var pieces [][]byte
	for range mostOfData / mostOfPiece {
		pieces = append(pieces, data(mostOfPiece, big[:mostOfPiece]...))
	}
	last := func(frame []byte) []byte { // the stream ends with it
		frame[4] = 1
		return frame
	}
	reply := control(frameSynReply, 12, 0, 0, 0, 1, 5, 6, 7, 8, 9, 10, 11, 12)
	for name, tc := range map[string]struct {
		reason   string
		in, want [][]byte
		refused  string
	}{
		"data":             {"what was written", [][]byte{data(5, []byte("hello")...), data(0), data(2, 'y', 'o')}, [][]byte{data(5, []byte("hello")...), data(0), data(2, 'y', 'o')}, ""},
		"much":             {"in pieces, of which who reads keeps some", [][]byte{data(len(big), big...)}, pieces, ""},
		"the last":         {"it ends with the last piece", [][]byte{last(data(mostOfPiece+1, big[:mostOfPiece+1]...)), data(1, 'a')}, [][]byte{data(mostOfPiece, big[:mostOfPiece]...), last(data(1, 'x')), data(1, 'a')}, ""},
		"the end":          {"", [][]byte{last(data(0))}, [][]byte{last(data(0))}, ""},
		"too much":         {"room is made for all of it", [][]byte{data(1), {'a'}, data(mostOfData + 1)}, [][]byte{data(1), {'a'}}, "holds 1048577 bytes"},
		"reply":            {"a stream is there", [][]byte{reply}, [][]byte{reply}, ""},
		"short reply":      {"who reads takes data for headers", [][]byte{control(frameSynReply, 3, 1, 2, 3)}, nil, "of type 2 holds 3 bytes"},
		"empty reset":      {"who reads takes data for it, and what is in that for frames", [][]byte{control(frameRstStream, 0)}, nil, "of type 3 holds 0 bytes"},
		"short goodbye":    {"the same", [][]byte{control(frameGoAway, 7, 0, 0, 0, 1, 0, 0, 0)}, nil, "of type 7 holds 7 bytes"},
		"long reply":       {"its headers are compressed, a thousand to one", [][]byte{control(frameSynReply, 65)}, nil, "of type 2 holds 65 bytes"},
		"reset":            {"a stream has ended", [][]byte{control(frameRstStream, 8, 0, 0, 0, 1, 0, 0, 0, 5)}, [][]byte{control(frameRstStream, 8, 0, 0, 0, 1, 0, 0, 0, 5)}, ""},
		"goes away":        {"it ends", [][]byte{control(frameGoAway, 8, 0, 0, 0, 1, 0, 0, 0, 0)}, [][]byte{control(frameGoAway, 8, 0, 0, 0, 1, 0, 0, 0, 0)}, ""},
		"short ping":       {"it is none", [][]byte{control(framePing, 3, 0, 0, 0)}, nil, "of type 6 holds 3 bytes"},
		"settings":         {"they are kept", [][]byte{control(4, 12)}, nil, "of type 4"},
		"pings":            {"each that we sent is answered once", [][]byte{ping(1), ping(3)}, [][]byte{ping(1), ping(3)}, ""},
		"ping twice":       {"spdystream closes a channel twice", [][]byte{ping(1), ping(1), data(1, 'a'), ping(3), ping(1)}, [][]byte{ping(1), data(1, 'a'), ping(3)}, ""},
		"theirs":           {"we answer, as often as they ask", [][]byte{ping(2), ping(2)}, [][]byte{ping(2), ping(2)}, ""},
		"long ping":        {"it is none", [][]byte{control(framePing, 5, 0, 0, 0, 1, 0)}, nil, "of type 6 holds 5 bytes"},
		"opens a stream":   {"each would be kept", [][]byte{control(1, 10)}, nil, "of type 1"},
		"headers":          {"nobody reads them, and what comes after waits", [][]byte{control(8, 4)}, nil, "of type 8"},
		"cut in the head":  {"it ends as it ends", [][]byte{{0x80, 3}}, nil, "unexpected EOF"},
		"cut in its bytes": {"so does a frame", [][]byte{data(3, 'a')}, [][]byte{data(3, 'a')}, ""},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader} {
			got, err := io.ReadAll(spdyOf(readOnly{reader(bytes.NewReader(bytes.Join(tc.in, nil)))}, "spdy/3.1"))
			if want := bytes.Join(tc.want, nil); !bytes.Equal(got, want) {
				t.Errorf("%s, %s: %d bytes %.40x, want %d %.40x: %s", name, how, len(got), got, len(want), want, tc.reason)
			}
			if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("%s, %s: %v, want %q: %s", name, how, err, tc.refused, tc.reason)
			}
		}
	}
	if got, err := io.ReadAll(spdyOf(readOnly{strings.NewReader("anything else")}, "websocket")); string(got) != "anything else" || err != nil {
		t.Errorf("another protocol is read as frames: %q %v", got, err)
	}
}

// passedOn is a connection whose frames pass through those of SPDY.
type passedOn struct {
	net.Conn
	frames io.ReadWriteCloser
}

func (p passedOn) Read(b []byte) (int, error) { return p.frames.Read(b) }

// TestUnreadStream: what nobody reads waits with who wrote it. The largest frame that passes does not fit where the server keeps 50 of a stream.
func TestUnreadStream(t *testing.T) {
	theirs, ours := net.Pipe()
	written := make(chan error, 1)
	kubelet, err := spdy.NewServerConnection(theirs, func(stream httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			_, err := stream.Write(make([]byte, mostOfData))
			written <- err
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close() //nolint:errcheck // a test's
	reads, err := spdy.NewClientConnection(passedOn{ours, spdyOf(ours, "SPDY/3.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Close() //nolint:errcheck // a test's
	stream, err := reads.CreateStream(http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-written:
		t.Fatalf("all of it was taken (%v), and nobody reads", err)
	case <-time.After(time.Second): // it is not in this time
	}
	if n, err := io.CopyN(io.Discard, stream, mostOfData); err != nil {
		t.Errorf("%d of %d bytes were read: %v", n, mostOfData, err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestStreamThatDoesNotSwitch: 200 is no answer to who asks for another protocol; whoever does so would read it to its end.
func TestStreamThatDoesNotSwitch(t *testing.T) {
	for name, over := range ways {
		t.Run(name, func(t *testing.T) {
			client := over(t, newAPIBelow(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("all is well ", 1<<18))
			}))
			res := execIn(t, client, "cat")
			defer res.Body.Close() //nolint:errcheck // only read
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusServiceUnavailable || len(text) > 2*mostOfRefusal || !strings.Contains(string(text), `physical cluster "east"`) {
				t.Errorf("%s with %d bytes %v, want 503 with few", res.Status, len(text), err)
			}
		})
	}
}
