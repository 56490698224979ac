package workspacefile

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"time"

	"atoll.dev/atoll/internal/checkedfile"
)

const (
	// form is the version of the file's own layout. Raise it when an older binary would misread a newer file.
	form = 1

	// maxLine bounds a line, in bytes: many times what etcd takes as one value, in base64.
	maxLine = 32 << 20
)

var kind = checkedfile.Kind{
	Begin: `{"atollWorkspace":`, End: "atoll-workspace-sha256:",
	Other: "no export of a workspace: give a file that `atoll workspace export` wrote", Again: "export again",
}

// Header says what an export holds.
type Header struct {
	// Form is the version of the file's layout; NewWriter sets it. It is the first field, see kind.
	Form int `json:"atollWorkspace"`
	// Created is when the export began, by the server's clock.
	Created time.Time `json:"created"`
	// Path of the workspace that was exported, for instance root:org:team.
	Path string `json:"path"`
	// Type of that workspace, as root:org:team; empty if it had none, and in exports of before this was written.
	Type string `json:"type,omitempty"`
	// Server is the URL at which the server was reached.
	Server string `json:"server"`
	// Kubernetes is the version of the API whose objects these are, as 1.36.
	Kubernetes string `json:"kubernetes"`
	// Revision of the store that the rows are of.
	Revision int64 `json:"revision"`
	// LeftOut is what the workspace stored and the file does not have, since no server could take it: of resources that were
	// not served any more, as "widgets.shop.example (3)".
	LeftOut []string `json:"leftOut,omitempty"`
}

// Row is what the store holds of one object, decrypted.
type Row struct {
	// Prefix and Key are where it is stored: below the prefix of its resource and its logical cluster.
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
	// Custom says that it is an object of a CustomResourceDefinition.
	Custom bool   `json:"custom,omitempty"`
	Value  []byte `json:"value"`
}

// Writer writes an export. What is written after an error, or without Close, is none, and Open knows it.
type Writer struct {
	out io.Writer
	sum hash.Hash
}

// NewWriter writes the header.
func NewWriter(out io.Writer, h Header) (*Writer, error) {
	w := &Writer{out: out, sum: sha256.New()}
	h.Form = form
	return w, w.line(h)
}

// Add writes a row.
func (w *Writer) Add(r Row) error { return w.line(r) }

// Close writes the checksum. It does not close what is written to.
func (w *Writer) Close() error {
	if _, err := io.WriteString(w.out, kind.LastLine(w.sum)); err != nil {
		return fmt.Errorf("write the checksum: %w", err)
	}
	return nil
}

func (w *Writer) line(what any) error {
	line, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	line = append(line, '\n')
	w.sum.Write(line) // never fails
	if _, err := w.out.Write(line); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}
