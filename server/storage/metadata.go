package storage

import (
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// Metadata opens a store that reads the metadata of the rows at <prefix>/<group>/<resource>/, which are custom resources of
// any logical cluster, scope and schema, as metav1.PartialObjectMetadata. It writes nothing, and is memory alone, of which nothing is
// kept here: whoever needs it no more forgets it.
func (b *Backend) Metadata(gr schema.GroupResource) (*Resource, error) {
	config := storagebackend.NewDefaultConfig(b.prefix, metadataCodec{}).ForResource(gr)
	config.Transformer = b.transformerOf(gr)
	prefix := "/" + gr.Group + "/" + gr.Resource
	key := func(obj runtime.Object) (string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		return prefix + "/" + m.GetNamespace() + "/" + m.GetName(), nil
	}
	return b.open(config, prefix, key,
		func() runtime.Object { return &metav1.PartialObjectMetadata{} },
		func() runtime.Object { return &metav1.PartialObjectMetadataList{} },
		storage.DefaultNamespaceScopedAttr, customResources)
}

// metadataCodec reads the metadata of objects in JSON, as which custom resources are stored.
type metadataCodec struct{}

var _ runtime.Codec = metadataCodec{}

func (metadataCodec) Identifier() runtime.Identifier { return "metadata" }

func (metadataCodec) Encode(runtime.Object, io.Writer) error {
	return errors.New("a store of metadata only reads")
}

func (metadataCodec) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	m, ok := into.(*metav1.PartialObjectMetadata)
	switch {
	case into == nil: // of a watch
		m = &metav1.PartialObjectMetadata{}
	case !ok:
		return nil, nil, fmt.Errorf("read metadata into a %T", into)
	}
	// Case matters: a custom resource may have a field Metadata, of any type, beside its metadata.
	if err := utiljson.Unmarshal(data, m); err != nil {
		return nil, nil, fmt.Errorf("read metadata: %w", err)
	}
	gvk := m.GroupVersionKind()
	return m, &gvk, nil
}
