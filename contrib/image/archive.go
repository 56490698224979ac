package main

import (
	"archive/tar"
	"encoding/json"
	"io"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// write writes an image as a tar of an OCI layout, with the list of "docker save" in it, which names the same blobs.
func write(w io.Writer, img v1.Image, name reference.NamedTagged, created time.Time) error {
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	index, err := indexOf(img, name)
	if err != nil {
		return err
	}
	list, err := json.Marshal(tarball.Manifest{{
		Config: blob(manifest.Config.Digest), RepoTags: []string{reference.FamiliarString(name)}, Layers: []string{blob(manifest.Layers[0].Digest)},
	}})
	if err != nil {
		return err
	}
	rawManifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	layer, err := img.LayerByDigest(manifest.Layers[0].Digest)
	if err != nil {
		return err
	}
	compressed, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer compressed.Close()
	data, err := io.ReadAll(compressed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", index},
		{"manifest.json", list},
		{blob(digest), rawManifest},
		{blob(manifest.Config.Digest), config},
		{blob(manifest.Layers[0].Digest), data},
	} {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: 0o644, Size: int64(len(file.data)), ModTime: created}); err != nil {
			return err
		}
		if _, err := archive.Write(file.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// blob is where an OCI layout has what a digest names.
func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// indexOf is the index of a layout that holds one image. containerd goes by its first annotation, others by the second.
func indexOf(img v1.Image, name reference.NamedTagged) ([]byte, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
		Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture},
		Annotations: map[string]string{
			"io.containerd.image.name":          name.String(),
			"org.opencontainers.image.ref.name": name.Tag(),
		},
	}}).RawManifest()
}
