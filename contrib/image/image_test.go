package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// greeting is a program that needs nothing of the machine.
const greeting = `package main

func main() { println("hello") }
`

// programOf builds a program as "make image" does.
func programOf(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: the program of an image is one of linux")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "greeting")
	if err := os.WriteFile(source, []byte(greeting), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, source)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build a program: %v\n%s", err, out)
	}
	return program
}

// TestImage reads what was written back as both that it is, the list of "docker save" and an OCI layout, and runs the program.
func TestImage(t *testing.T) {
	program := programOf(t)
	created := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	files := []string{filepath.Join(t.TempDir(), "a.tar"), filepath.Join(t.TempDir(), "b.tar")}
	for _, file := range files {
		if err := run(program, file, "registry.example/team/atoll:v1", "0123abc", created); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := read(t, files[0]), read(t, files[1]); !bytes.Equal(a, b) {
		t.Error("two images of the same program differ")
	}

	list, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(files[0]) })
	if err != nil || len(list) != 1 || !cmp.Equal(list[0].RepoTags, []string{"registry.example/team/atoll:v1"}) {
		t.Errorf("the list of \"docker save\" is %v, %v", list, err)
	}
	docker, err := tarball.ImageFromPath(files[0], nil)
	if err != nil {
		t.Fatalf("read it as \"docker load\" does: %v", err)
	}
	dir := t.TempDir()
	untar(t, bytes.NewReader(read(t, files[0])), dir, created)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("read it as an OCI layout: %v", err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("the OCI layout is not valid: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the index is %v, %v", manifest, err)
	}
	oci := manifest.Manifests[0]
	if got := oci.Annotations["io.containerd.image.name"]; got != "registry.example/team/atoll:v1" || oci.Platform.Architecture != runtime.GOARCH {
		t.Errorf("the index names %q for %s", got, oci.Platform)
	}
	img, err := index.Image(oci.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for how, img := range map[string]v1.Image{"as docker does": docker, "as an OCI layout": img} {
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatalf("read it %s: %v", how, err)
		}
		if config.OS != "linux" || config.Architecture != runtime.GOARCH || !config.Created.Equal(created) || len(config.RootFS.DiffIDs) != 1 || config.RootFS.Type != "layers" {
			t.Errorf("read %s it is %s/%s of %s with layers %v", how, config.OS, config.Architecture, config.Created, config.RootFS)
		}
		want := v1.Config{
			Entrypoint: []string{"atoll"}, User: "65532:65532", WorkingDir: "/var/lib/atoll",
			Env:          []string{"PATH=/usr/local/bin", "HOME=/var/lib/atoll"},
			ExposedPorts: map[string]struct{}{"6443/tcp": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title": "Atoll", "org.opencontainers.image.description": "Many Kubernetes clusters, one API",
				"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.version": "v1",
				"org.opencontainers.image.revision": "0123abc", "org.opencontainers.image.created": "2026-01-31T12:00:00Z",
			},
		}
		if diff := cmp.Diff(want, config.Config); diff != "" {
			t.Errorf("read %s it is run by (-want +got):\n%s", how, diff)
		}
	}

	root := t.TempDir()
	content := mutate.Extract(img)
	defer content.Close()
	headers := untar(t, content, root, created)
	var names []string
	for _, h := range headers {
		names = append(names, h.Name)
		if home := strings.HasPrefix(h.Name, "var/lib/atoll"); (h.Uid == user) != home || h.Uid != h.Gid {
			t.Errorf("%s is of %d:%d", h.Name, h.Uid, h.Gid)
		}
	}
	if diff := cmp.Diff([]string{"etc", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt", "usr", "usr/local", "usr/local/bin",
		"usr/local/bin/atoll", "var", "var/lib", "var/lib/atoll"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, programPath)).CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("the program says %q, %v", out, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(read(t, filepath.Join(root, rootsPath))) {
		t.Error("the image has no certificate authorities")
	}
}

// TestPlatformIsThePrograms builds an image for a machine that is not this one.
func TestPlatformIsThePrograms(t *testing.T) {
	program := programOf(t)
	for machine, want := range map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"} {
		img, err := build(content{program: changed(t, program, func(b []byte) { b[18] = byte(machine) })})
		if err != nil {
			t.Fatal(err)
		}
		if config, err := img.ConfigFile(); err != nil || config.Architecture != want {
			t.Errorf("a program for %s makes an image of %+v, %v", machine, config, err)
		}
	}
}

// TestImageRefuses tries programs that would not run in the image, and names that say too little.
func TestImageRefuses(t *testing.T) {
	program := programOf(t)
	for name, tc := range map[string]struct{ program, image, want string }{
		"NoTag":        {program, "atoll", "want a name and a tag"},
		"BadName":      {program, "Atoll:v1", "--name"},
		"NoProgram":    {filepath.Join(t.TempDir(), "atoll"), "atoll:v1", "no such file"},
		"NotOfLinux":   {"image.go", "atoll:v1", "GOOS=linux"},
		"Dynamic":      {changed(t, program, func(b []byte) { interpreted(t, b) }), "atoll:v1", "CGO_ENABLED=0"},
		"OtherMachine": {changed(t, program, func(b []byte) { b[18] = byte(elf.EM_S390) }), "atoll:v1", "want amd64 or arm64"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			err := run(tc.program, file, tc.image, "", time.Unix(0, 0))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want a word of %q", err, tc.want)
			}
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file is there: %v", err)
			}
		})
	}
}

// changed is a copy of a program with some bytes changed.
func changed(t *testing.T, program string, change func([]byte)) string {
	t.Helper()
	data := read(t, program)
	change(data)
	file := filepath.Join(t.TempDir(), "changed")
	if err := os.WriteFile(file, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// interpreted makes the first program header of an ELF file of 64 bits that of a dynamic linker.
func interpreted(t *testing.T, program []byte) {
	t.Helper()
	headers := binary.LittleEndian.Uint64(program[0x20:])
	binary.LittleEndian.PutUint32(program[headers:], uint32(elf.PT_INTERP))
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// untar unpacks a tar, in which everything has that time, and returns what is in it.
func untar(t *testing.T, from io.Reader, dir string, created time.Time) []*tar.Header {
	t.Helper()
	var headers []*tar.Header
	for archive := tar.NewReader(from); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return headers
		} else if err != nil {
			t.Fatal(err)
		}
		h.Name = strings.TrimSuffix(h.Name, "/")
		headers = append(headers, h)
		if !h.ModTime.Equal(created) {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
		name := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(name, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, h.FileInfo().Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}
