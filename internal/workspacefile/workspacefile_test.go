package workspacefile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The last line of a file, as files that were written before have it.
const (
	trailerStart = "atoll-workspace-sha256:"
	trailerSize  = int64(len(trailerStart)) + 2*sha256.Size + 1
)

var taken = Header{
	Created: time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC), Path: "root:shop", Type: "root:org:team", Server: "https://127.0.0.1:6443", Kubernetes: "1.36", Revision: 4711,
	LeftOut: []string{"widgets.shop.example (3)"},
}

func written(t testing.TB, rows ...Row) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := NewWriter(&file, taken)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestWriteAndRead(t *testing.T) {
	want := []Row{
		{Prefix: "/configmaps", Key: "default/a", Value: []byte("k8s\x00\xff\n")},
		{Prefix: "/example.com/widgets", Key: "default/a", Custom: true, Value: bytes.Repeat([]byte("x"), 200<<10)},
		{Prefix: "/secrets", Key: "default/b", Value: []byte{}},
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, written(t, want...), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header := taken
	header.Form = form
	if diff := cmp.Diff(header, f.Header); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	var got []Row
	if err := f.Rows(func(at int64, r Row) error {
		got = append(got, r)
		again, err := f.At(at)
		if diff := cmp.Diff(r, again); diff != "" || err != nil {
			t.Errorf("at %d: %v\n%s", at, err, diff)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// TestOpenRefuses: every bit and every byte counts.
func TestOpenRefuses(t *testing.T) {
	whole := written(t, Row{Prefix: "/configmaps", Key: "default/a", Value: []byte("value")})
	path := filepath.Join(t.TempDir(), "file")
	refused := func(reason string, data []byte, words ...string) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, "shop.atoll")
		if err == nil {
			_ = f.Close()
			t.Errorf("%s: opened", reason)
			return
		}
		for _, word := range append(words, "shop.atoll") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %q does not say %q", reason, err, word)
			}
		}
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1 << (i % 8)
		refused(fmt.Sprintf("a bit of byte %d is flipped", i), flipped)
	}
	for length := range whole {
		refused("cut off", whole[:length])
	}
	refused("cut off", whole[:len(whole)-1], "cut off", "export again")
	refused("empty", nil, "no export of a workspace", "atoll workspace export")
	refused("longer", append(bytes.Clone(whole), 'x'), "end is damaged")

	newer := bytes.Replace(whole, []byte(`"atollWorkspace":1`), []byte(`"atollWorkspace":2`), 1)
	newer = newer[:int64(len(newer))-trailerSize]
	newer = fmt.Appendf(newer, "%s%x\n", trailerStart, sha256.Sum256(newer))
	refused("newer, checksum right", newer, "form 2", "newer")
}
