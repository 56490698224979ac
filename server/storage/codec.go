package storage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Between the codec and the transformer, values carry a header that names their logical cluster: a codec knows the
// object and not the key, a transformer the key and not the object. The header never reaches etcd.
//
//	write: object with annotation -> codec: "lc:root\n" + bytes -> transformer: compare with the key, strip -> etcd
//	read:  etcd -> transformer: prepend from the key -> codec: bytes -> object with annotation
//
// It is the same on both ways, so etcd3's comparison of what it would write with what it read still finds no-ops.
const headerStart = "lc:"

func appendHeader(dst []byte, cluster string) []byte {
	dst = append(dst, headerStart...)
	dst = append(dst, cluster...)
	return append(dst, '\n')
}

// splitHeader is the cluster and the plain bytes of a value with a header.
func splitHeader(data []byte) (cluster, plain []byte, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(headerStart))
	if ok {
		cluster, plain, ok = bytes.Cut(rest, []byte{'\n'})
	}
	if !ok || len(cluster) == 0 {
		return nil, nil, fmt.Errorf("value has no logical cluster header")
	}
	return cluster, plain, nil
}

// clusterCodec is a storage codec that writes the header from the annotation, and the annotation from the header. So it does with the mark of
// what was reset (reset.go).
type clusterCodec struct {
	inner      runtime.Codec
	identifier runtime.Identifier
	marks      bool // of what was reset: something is shared, and who reads knows them. Else they are skipped, and none is written.
}

func newClusterCodec(inner runtime.Codec, marks bool) *clusterCodec {
	return &clusterCodec{inner: inner, identifier: "cluster:" + inner.Identifier(), marks: marks}
}

func (c *clusterCodec) Identifier() runtime.Identifier { return c.identifier }

// Encode writes the header and then obj without the annotation. It refuses an object without one: somebody bypassed
// clusterStorage.
func (c *clusterCodec) Encode(obj runtime.Object, w io.Writer) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("encode %T for storage: %w", obj, err)
	}
	annotations := object.GetAnnotations()
	cluster := annotations[lc.Annotation]
	if cluster == "" {
		return fmt.Errorf("encode %T %q for storage: it names no logical cluster", obj, object.GetName())
	}
	if _, err := w.Write(appendHeader(make([]byte, 0, len(headerStart)+len(cluster)+1), cluster)); err != nil {
		return err
	}
	// The object gets other annotations for the time of the call, because the map may be shared with other holders.
	var plain map[string]string
	if len(annotations) > 1 {
		plain = maps.Clone(annotations)
		delete(plain, lc.Annotation)
	}
	object.SetAnnotations(plain)
	defer object.SetAnnotations(annotations)
	marked := object.GetUID()
	uid, reset := strings.CutPrefix(string(marked), resetUID)
	if !reset || !c.marks {
		return c.inner.Encode(obj, w)
	}
	object.SetUID(types.UID(uid))
	defer object.SetUID(marked)
	if err := c.inner.Encode(obj, w); err != nil {
		return err
	}
	_, err = io.WriteString(w, resetMark)
	return err
}

func (c *clusterCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	cluster, plain, err := splitHeader(data)
	if err != nil {
		return nil, nil, fmt.Errorf("decode from storage: %w", err)
	}
	return c.decodePlain(string(cluster), plain, defaults, into)
}

// decodePlain decodes a value without a header, of the given logical cluster.
func (c *clusterCodec) decodePlain(cluster string, plain []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	plain, reset := cutMark(plain)
	obj, gvk, err := c.inner.Decode(plain, defaults, into)
	if err != nil {
		return obj, gvk, err
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, gvk, fmt.Errorf("decode %T from storage: %w", obj, err)
	}
	if reset && c.marks {
		object.SetUID(resetUID + object.GetUID())
	}
	// One string for each logical cluster in memory, however many objects it has.
	setCluster(object, unique.Make(cluster).Value())
	return obj, gvk, nil
}

// setCluster sets the annotation. It never writes into a map that others may hold.
func setCluster(object metav1.Object, cluster string) {
	annotations := object.GetAnnotations()
	if annotations[lc.Annotation] == cluster {
		return
	}
	next := make(map[string]string, len(annotations)+1)
	maps.Copy(next, annotations)
	next[lc.Annotation] = cluster
	object.SetAnnotations(next)
}

// clusterTransformer verifies and strips the header on write and prepends it from the key on read. inner sees plain
// Kubernetes bytes and the full key, as upstream's encryption does.
type clusterTransformer struct {
	inner value.Transformer
	// base is the store's prefix with the resource prefix, for instance /registry/configmaps.
	base string
}

func (t *clusterTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	cluster, err := clusterOf(t.base, string(dataCtx.AuthenticatedData()))
	if err != nil {
		return nil, false, err
	}
	plain, stale, err := t.inner.TransformFromStorage(ctx, data, dataCtx)
	if err != nil {
		return nil, stale, err
	}
	out := make([]byte, 0, len(headerStart)+len(cluster)+1+len(plain))
	return append(appendHeader(out, cluster), plain...), stale, nil
}

func (t *clusterTransformer) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	key := string(dataCtx.AuthenticatedData())
	cluster, err := clusterOf(t.base, key)
	if err != nil {
		return nil, err
	}
	named, plain, err := splitHeader(data)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", key, err)
	}
	if string(named) != cluster {
		return nil, fmt.Errorf("write %s: the object is of logical cluster %q", key, named)
	}
	return t.inner.TransformToStorage(ctx, plain, dataCtx)
}
