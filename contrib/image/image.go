package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// programPath is where the program is, and programDirectory is in PATH: manifests call it atoll.
	programDirectory = "/usr/local/bin"
	programPath      = programDirectory + "/atoll"
	// rootsPath is where Go looks for certificate authorities first. SSL_CERT_FILE names another file.
	rootsPath = "/etc/ssl/certs/ca-certificates.crt"
	// home is where the program runs, and the place for a volume: the server keeps everything in .atoll there, where the other
	// commands find it by themselves.
	home = "/var/lib/atoll"
	// user and group of the program: nobody in particular, by a number, so that a kubelet sees that it is not root. The same as
	// that of the syncer's Pod.
	user = 65532
	// port of the API by default.
	port = "6443/tcp"
)

// content says what an image is made of. Equal contents give equal images.
type content struct {
	program           string // file
	version, revision string
	created           time.Time // of everything in it
}

// build makes the image, of one layer, for the platform of the program.
func build(c content) (v1.Image, error) {
	architecture, err := architectureOf(c.program)
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(c.program)
	if err != nil {
		return nil, err
	}
	files, err := tree(c.created, program, roots())
	if err != nil {
		return nil, fmt.Errorf("write its layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress its layer: %w", err)
	}
	created := v1.Time{Time: c.created}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Created: created, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint:   []string{"atoll"},
			User:         fmt.Sprintf("%d:%d", user, user),
			WorkingDir:   home,
			Env:          []string{"PATH=" + programDirectory, "HOME=" + home},
			ExposedPorts: map[string]struct{}{port: {}},
			Labels: map[string]string{
				"org.opencontainers.image.title":       "Atoll",
				"org.opencontainers.image.description": "Many Kubernetes clusters, one API",
				"org.opencontainers.image.licenses":    "Apache-2.0",
				"org.opencontainers.image.version":     c.version,
				"org.opencontainers.image.revision":    c.revision,
				"org.opencontainers.image.created":     c.created.Format(time.RFC3339),
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make image"}})
}

// architectureOf returns the GOARCH of a program that runs in an image with nothing else in it.
func architectureOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("%s is no program of linux: %w: build it with GOOS=linux", program, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is linked dynamically, and the image has no libraries: build it with CGO_ENABLED=0", program)
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("%s is for %s: want amd64 or arm64", program, f.Machine)
}

// tree is the image's file system, as a tar.
func tree(created time.Time, program, roots []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	known := map[string]bool{}
	var add func(h tar.Header, data []byte) error
	add = func(h tar.Header, data []byte) error {
		if parent := path.Dir(h.Name); parent != "/" && !known[parent] {
			if err := add(tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755}, nil); err != nil {
				return err
			}
		}
		known[h.Name] = true
		h.Name, h.Size, h.ModTime, h.Format = strings.TrimPrefix(h.Name, "/"), int64(len(data)), created, tar.FormatPAX
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, file := range []struct {
		header tar.Header
		data   []byte
	}{
		{tar.Header{Typeflag: tar.TypeReg, Name: rootsPath, Mode: 0o644}, roots},
		{tar.Header{Typeflag: tar.TypeReg, Name: programPath, Mode: 0o755}, program},
		// A volume that a container engine makes takes over its owner and mode.
		{tar.Header{Typeflag: tar.TypeDir, Name: home, Mode: 0o700, Uid: user, Gid: user}, nil},
	} {
		if err := add(file.header, file.data); err != nil {
			return nil, fmt.Errorf("%s: %w", file.header.Name, err)
		}
	}
	return out.Bytes(), w.Close()
}

// roots are the certificate authorities of Mozilla, as the Go project passes them on: whom the server asks outside by a name that public
// authorities vouch for, such as an OIDC provider or a webhook without a caBundle, it could not trust without. Those that are trusted
// only for what they signed up to some day are not among them, since a file cannot say so, and such certificates have run out or do soon.
func roots() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}
