package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestImportRefusesBeforeItAsks(t *testing.T) {
	f := newFakeAtoll(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(`{"atollWorkspace":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason string
		args   []string
		words  []string
	}{
		{"no file is named", []string{"shop"}, []string{"--input", "workspace export"}},
		{"there is none", []string{"shop", "--input", file + "x"}, []string{"no such file"}},
		{"half of one", []string{"shop", "--input", file}, []string{file, "cut off"}},
		{"the top of the tree", []string{"root", "--input", file}, []string{"top of the tree"}},
	} {
		_, _, err := f.call(t, newWorkspaceImportCommand, tc.args...)
		refuses(t, tc.reason, err, tc.words...)
	}
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := f.call(t, newWorkspaceExportCommand, "shop", "--output", file)
	refuses(t, "a file that is there", err, "is there already", "--output")
}
