// Package programimage makes container images that hold one program, linked statically, and nothing else: for what is run in tests, where no registry has any.
// contrib/image makes the one that is released: of one program and one user, with authorities, for several kinds of machines.
package programimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image says what is in an image.
type Image struct {
	Name    string   // with its registry and tag
	Program string   // a file of this machine, the entrypoint: /bin/NAME
	Links   []string // other names of the program, in /bin, too
}

// Write writes an image for this machine as an archive of docker's.
func Write(file string, i Image) error {
	tag, err := name.NewTag(i.Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	program, err := os.ReadFile(i.Program)
	if err != nil {
		return err
	}
	entrypoint := path.Join("/bin", path.Base(i.Program))
	files, err := tree(entrypoint, program, i.Links)
	if err != nil {
		return fmt.Errorf("write the layer of image %s: %w", i.Name, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return fmt.Errorf("compress the layer of image %s: %w", i.Name, err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{entrypoint}, Env: []string{"PATH=/bin"}},
	})
	if err != nil {
		return err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return err
	}
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		return fmt.Errorf("write image %s: %w", i.Name, err)
	}
	return nil
}

// tree is the image's file system, as a tar: the program, and a directory that everybody writes to.
func tree(entrypoint string, program []byte, links []string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	headers := []tar.Header{
		{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(entrypoint, "/"), Mode: 0o755, Size: int64(len(program))},
	}
	for _, link := range links {
		headers = append(headers, tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: path.Base(entrypoint), Mode: 0o777})
	}
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(program); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
