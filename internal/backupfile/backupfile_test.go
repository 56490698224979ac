package backupfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The last line of a file, as files that were written before have it.
const (
	trailerStart = "atoll-backup-sha256:"
	trailerSize  = int64(len(trailerStart)) + 2*sha256.Size + 1
)

var taken = Header{Created: time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC), Server: "https://127.0.0.1:6443", StoreFormat: 1, Revision: 4711}

func written(t *testing.T, h Header, keys []Key, store io.Reader) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := Write(&file, h, keys, store); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func fileOf(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWriteAndRead(t *testing.T) {
	keys := []Key{{"ca.crt", []byte("certificate")}, {"syncers/ca.key", []byte("key")}, {"empty", []byte{}}}
	for reason, store := range map[string][]byte{
		"one part": []byte("store"), "several parts": bytes.Repeat([]byte("0123456789abcde\n"), partSize/16+3), "whole parts": make([]byte, 2*partSize),
	} {
		b, err := Open(fileOf(t, written(t, taken, keys, iotest.HalfReader(bytes.NewReader(store)))))
		if err != nil {
			t.Fatalf("%s: %v", reason, err)
		}
		want := taken
		want.Form = form
		if diff := cmp.Diff(want, b.Header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", reason, diff)
		}
		var (
			gotKeys  []Key
			gotStore bytes.Buffer
		)
		err = b.Read(
			func(k Key) error { gotKeys = append(gotKeys, k); return nil },
			func(r io.Reader) error { _, err := gotStore.ReadFrom(r); return err })
		if err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		if diff := cmp.Diff(keys, gotKeys); diff != "" {
			t.Errorf("%s: keys (-want +got):\n%s", reason, diff)
		}
		if !bytes.Equal(store, gotStore.Bytes()) {
			t.Errorf("%s: of a store of %d bytes came back %d, or others", reason, len(store), gotStore.Len())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenRefuses: every bit and every byte counts.
func TestOpenRefuses(t *testing.T) {
	whole := written(t, taken, []Key{{"ca.key", []byte("key")}}, strings.NewReader("store"))
	path := filepath.Join(t.TempDir(), "file")
	refused := func(reason string, data []byte, words ...string) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(path)
		if err == nil {
			_ = b.Close()
			t.Errorf("%s: opened", reason)
			return
		}
		for _, word := range append(words, path) {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %q does not say %q", reason, err, word)
			}
		}
	}
	for i := range whole {
		if i > 512 && i < len(whole)-300 && i%13 > 0 {
			continue // no other than its neighbours
		}
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1 << (i % 8)
		refused(fmt.Sprintf("a bit of byte %d is flipped", i), flipped)
	}
	for length := 0; length < len(whole); length += 7 {
		refused("cut off", whole[:length])
	}
	refused("cut off", whole[:len(whole)-1], "cut off", "another backup")
	refused("cut off in the header", whole[:100], "cut off")
	middle := bytes.Clone(whole)
	middle[len(middle)/2] ^= 4
	refused("flipped", middle, "is damaged", "another backup")
	refused("empty", nil, "no backup of Atoll", "atoll backup")
	refused("text", []byte("apiVersion: v1\n"), "no backup of Atoll")
	refused("longer", append(bytes.Clone(whole), 'x'), "end is damaged")

	newer := bytes.Replace(whole, []byte(`"form":1`), []byte(`"form":2`), 1)
	newer = newer[:int64(len(newer))-trailerSize]
	newer = fmt.Appendf(newer, "%s%x\n", trailerStart, sha256.Sum256(newer))
	refused("newer, checksum right", newer, "form 2", "newer")
	if _, err := Open(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func TestReadRefusesWhatLeadsElsewhere(t *testing.T) {
	for _, name := range []string{"../ca.key", "/etc/passwd", "a/../../b"} {
		b, err := Open(fileOf(t, written(t, taken, []Key{{name, nil}}, strings.NewReader("store"))))
		if err != nil {
			t.Fatal(err)
		}
		err = b.Read(func(k Key) error { t.Errorf("passed on %s", k.Name); return nil }, func(io.Reader) error { return nil })
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close()
	}
	b, err := Open(fileOf(t, written(t, taken, nil, strings.NewReader(""))))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Read(func(Key) error { return nil }, func(io.Reader) error { return nil }); err == nil {
		t.Error("a backup without a store was read")
	}
}

// TestWriteThatFailsIsNoBackup: what the store could not give is not made up for.
func TestWriteThatFailsIsNoBackup(t *testing.T) {
	var file bytes.Buffer
	broken := io.MultiReader(bytes.NewReader(make([]byte, partSize+5)), iotest.ErrReader(errors.New("etcd is gone")))
	if err := Write(&file, taken, nil, broken); err == nil || !strings.Contains(err.Error(), "etcd is gone") {
		t.Errorf("error is %v", err)
	}
	if _, err := Open(fileOf(t, file.Bytes())); err == nil {
		t.Error("opened")
	}
}

// TestTarKnowsIt: docs/operations/restore.md takes the store out of a backup with tar.
func TestTarKnowsIt(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skipf("without tar the way that docs/operations/restore.md shows cannot be tried: %v", err)
	}
	store := bytes.Repeat([]byte("0123456789abcde\n"), partSize/16+3)
	path := fileOf(t, written(t, taken, []Key{{"ca.key", []byte("key")}}, bytes.NewReader(store)))
	out, err := exec.CommandContext(t.Context(), "tar", "-xOf", path, "--wildcards", "etcd/*").Output()
	if err != nil || !bytes.Equal(out, store) {
		t.Errorf("tar gives %d bytes of %d: %v", len(out), len(store), err)
	}
}

// FuzzOpen reads files whose checksum is right and whose content is anybody's: nothing is read twice or beyond its bounds, and
// no key leaves the directory of keys.
func FuzzOpen(f *testing.F) {
	var whole bytes.Buffer
	if err := Write(&whole, taken, []Key{{"ca.crt", []byte("certificate")}, {"syncers/ca.key", []byte("key")}}, strings.NewReader("store")); err != nil {
		f.Fatal(err)
	}
	content := whole.Bytes()[:int64(whole.Len())-trailerSize]
	f.Add(content)
	f.Add(content[:len(content)/2])
	f.Add([]byte(headerName + "\x00"))
	f.Add(bytes.ReplaceAll(content, []byte("ca.crt"), []byte("../crt")))
	f.Fuzz(func(t *testing.T, content []byte) {
		sum := sha256.Sum256(content)
		data := append(bytes.Clone(content), fmt.Sprintf("%s%x\n", trailerStart, sum)...)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(path)
		if err != nil {
			return
		}
		defer b.Close()
		_ = b.Read(func(k Key) error {
			if !filepath.IsLocal(k.Name) || len(k.Data) > maxKeySize {
				t.Errorf("a key of %d bytes at %q", len(k.Data), k.Name)
			}
			return nil
		}, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
	})
}
