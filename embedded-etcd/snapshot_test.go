package embeddedetcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// TestWholeSnapshots: a snapshot ends well only behind its checksum, however etcd says that it ends.
func TestWholeSnapshots(t *testing.T) {
	store := bytes.Repeat([]byte("0123456789"), 10_000)
	sum := sha256.Sum256(store)
	snapshot := append(bytes.Clone(store), sum[:]...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	flipped := bytes.Clone(snapshot)
	flipped[5000] ^= 1
	for reason, tc := range map[string]struct {
		ctx     context.Context
		content []byte
		end     error
		whole   bool
	}{
		"over gRPC":               {t.Context(), snapshot, io.EOF, true},
		"in this process":         {t.Context(), snapshot, context.Canceled, true},
		"an error behind it":      {t.Context(), snapshot, io.ErrUnexpectedEOF, false},
		"nobody wants it":         {ended, snapshot[:500], context.Canceled, false},
		"cut off":                 {t.Context(), snapshot[:len(snapshot)-500], io.EOF, false},
		"cut off in this process": {t.Context(), snapshot[:500], context.Canceled, false},
		"without its checksum":    {t.Context(), store, io.EOF, false},
		"less than a checksum":    {t.Context(), snapshot[:5], io.EOF, false},
		"empty":                   {t.Context(), nil, context.Canceled, false},
		"flipped":                 {t.Context(), flipped, io.EOF, false},
	} {
		for name, pieces := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader} {
			content := io.MultiReader(bytes.NewReader(tc.content), iotest.ErrReader(tc.end))
			got, err := io.ReadAll(&whole{content: pieces(content), ctx: tc.ctx, sum: sha256.New()})
			if (err == nil) != tc.whole {
				t.Errorf("%s, in %s: error %v, want one: %v", reason, name, err, !tc.whole)
			}
			if tc.whole && !bytes.Equal(got, snapshot) {
				t.Errorf("%s, in %s: %d bytes came, of %d", reason, name, len(got), len(snapshot))
			}
			if errors.Is(tc.ctx.Err(), context.Canceled) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", reason, err)
			}
		}
	}
}
