package embeddedetcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
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

// TestSnapshotIsOfAMemberThatHasEverything: a member that lags would give a backup without acknowledged writes.
func TestSnapshotIsOfAMemberThatHasEverything(t *testing.T) {
	for _, tc := range []struct {
		at     map[string]int64 // who is not in it is down
		want   string
		reason string
	}{
		{map[string]int64{"behind:1": 99, "ahead:1": 100}, "ahead:1", "it has what was acknowledged"},
		{map[string]int64{"behind:1": 100, "ahead:1": 101}, "behind:1", "the first that has it"},
		{map[string]int64{"behind:1": 98, "ahead:1": 99}, "", "nobody has"},
		{nil, "", "nobody answers"},
	} {
		got, err := memberAt(t.Context(), []string{"down:1", "behind:1", "ahead:1"}, 100, func(_ context.Context, endpoint string) (int64, error) {
			if revision, ok := tc.at[endpoint]; ok {
				return revision, nil
			}
			return 0, errors.New("connection refused")
		})
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v; want %q", tc.reason, got, err, tc.want)
		}
		if tc.want == "" && (err == nil || !strings.Contains(err.Error(), "down:1") || !strings.Contains(err.Error(), "ahead:1")) {
			t.Errorf("%s: error %v does not name the members", tc.reason, err)
		}
	}
}
