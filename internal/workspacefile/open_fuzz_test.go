package workspacefile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzOpen reads files whose checksum is right and whose content is anybody's: each byte belongs to the header or to one row, a row
// is the same where Rows told that it is, and what was read is written again as a file that says the same.
func FuzzOpen(f *testing.F) {
	file := written(f, Row{Prefix: "/configmaps", Key: "default/a", Value: []byte("k8s\x00\xff\n")}, Row{Prefix: "/shop.example/widgets", Key: "default/a", Custom: true, Value: []byte("{}")})
	content := file[:int64(len(file))-trailerSize]
	f.Add(content)
	f.Add(content[:len(content)-1])
	f.Add(content[:len(content)/2])
	f.Add(bytes.ReplaceAll(content, []byte{'\n'}, nil))
	f.Add(bytes.ReplaceAll(content, []byte{'\n'}, []byte("\n\n")))
	f.Add([]byte(`{"atollWorkspace":1}` + "\n" + `{"prefix":"/configmaps","key":"../a","value":"!"}` + "\n"))
	f.Add([]byte(`{"atollWorkspace":1}`))
	f.Add([]byte(`{"atollWorkspace":1,"path":1}` + "\n"))
	f.Add([]byte(`{"atollWorkspace":1} {"atollWorkspace":2}` + "\n"))
	f.Add([]byte(`{"atollWorkspace":`))
	f.Add([]byte(`{"atollWorkspace":1}` + "\nnull\n7\n[]\n"))
	directory := f.TempDir()
	open := func(t *testing.T, name string, content []byte) (*File, error) {
		t.Helper()
		path := filepath.Join(directory, name)
		data := fmt.Appendf(bytes.Clone(content), "%s%x\n", trailerStart, sha256.Sum256(content))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return Open(path, "shop.atoll")
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := open(t, "first", content)
		if err != nil {
			return
		}
		defer file.Close()
		if file.Form != form {
			t.Errorf("the form %d is read", file.Form)
		}
		var again bytes.Buffer
		w, err := NewWriter(&again, file.Header)
		if err != nil {
			t.Fatal(err)
		}
		ends := int64(bytes.IndexByte(content, '\n') + 1)
		var rows []Row
		if err := file.Rows(func(at int64, r Row) error {
			if at != ends {
				t.Errorf("a row begins at %d, and what is before it ends at %d", at, ends)
			}
			ends += int64(bytes.IndexByte(append(bytes.Clone(content[at:]), '\n'), '\n') + 1)
			same, err := file.At(at)
			if diff := cmp.Diff(r, same); diff != "" || err != nil {
				t.Errorf("at %d: %v\n%s", at, err, diff)
			}
			rows = append(rows, r)
			return w.Add(r)
		}); err != nil {
			return
		}
		if ends < int64(len(content)) {
			t.Errorf("%d bytes of %d are read", ends, len(content))
		}
		copied, err := open(t, "again", again.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		defer copied.Close()
		if diff := cmp.Diff(file.Header, copied.Header); diff != "" {
			t.Errorf("header (-first +written again):\n%s", diff)
		}
		n := 0
		if err := copied.Rows(func(_ int64, r Row) error {
			if n < len(rows) && !(r.Prefix == rows[n].Prefix && r.Key == rows[n].Key && r.Custom == rows[n].Custom && bytes.Equal(r.Value, rows[n].Value)) {
				t.Errorf("row %d is %+v, written again %+v", n, rows[n], r)
			}
			n++
			return nil
		}); err != nil || n != len(rows) {
			t.Errorf("of %d rows %d are there, written again: %v", len(rows), n, err)
		}
	})
}
