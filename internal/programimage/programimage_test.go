package programimage

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestWrite reads an image back by its name, as a container engine does.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "app"), filepath.Join(dir, "app.tar")
	if err := os.WriteFile(program, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	const called = "images.example/app:v1"
	if err := Write(file, Image{Name: called, Program: program, Links: []string{"tar"}}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(called)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(config.OS, config.Config.Entrypoint, config.Config.Env), "linux[/bin/app] [PATH=/bin]"; got != want {
		t.Errorf("it is run as %s, want %s", got, want)
	}
	content := mutate.Extract(img)
	defer content.Close()
	var got []string
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %o %s%s", h.Name, h.Mode, h.Linkname, data))
	}
	if want := "bin 755 , tmp 1777 , bin/app 755 a program, bin/tar 777 app"; strings.Join(got, ", ") != want {
		t.Errorf("it holds %q, want %q", strings.Join(got, ", "), want)
	}
	if err := Write(file, Image{Name: "app", Program: program}); err == nil {
		t.Error("a name without a registry and a tag is taken: a kubelet would look for another one")
	}
}
