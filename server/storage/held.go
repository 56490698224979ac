package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage/value"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// firstRows is how many rows of each resource are read together, of several up to maxPage: what a new logical cluster
	// holds is read at once.
	firstRows = 4
	// maxLooks is how many pages, of all logical clusters that are looked at, are in memory at once.
	maxLooks = 4
)

// Hold returns those of an object's finalizers that are to be waited for.
type Hold func(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, finalizers []string) ([]string, error)

// Held returns which objects of a logical cluster finalizers hold, as etcd has them now, but for resources in keep.
func (b *Backend) Held(ctx context.Context, cluster logicalcluster.Name, hold Hold, keep ...schema.GroupResource) (lc.Held, error) {
	pass, _, _, err := b.look(ctx, cluster, hold, false, keep)
	if err != nil {
		return lc.Held{}, err
	}
	return pass.held, nil
}

// DeleteUnheldData removes every row of a logical cluster, if finalizers hold none of its
// objects, as etcd has them now. Else it removes nothing and returns what is held. An object that gets a finalizer meanwhile
// stays, too, but others may be gone. Rows of the resources in keep stay and hold nothing. What is on record beside the rows stays for
// DeleteClusterData, which callers end with.
//
// A row that cannot be read is an error: nobody knows what it holds. A lock holds nothing.
func (b *Backend) DeleteUnheldData(ctx context.Context, cluster logicalcluster.Name, hold Hold, keep ...schema.GroupResource) (lc.Held, error) {
	// The first look is at everything before anything goes. What is written later is seen in its turn.
	for some := false; ; some = true {
		pass, rows, complete, err := b.look(ctx, cluster, hold, some, keep)
		switch {
		case err != nil:
			return lc.Held{}, err
		case !pass.held.Empty():
			return pass.held, nil
		case complete && len(rows) == 0:
			b.usage.forget(cluster)
			return lc.Held{}, nil
		}
		if err := b.deleteAsSeen(ctx, rows); err != nil {
			return lc.Held{}, fmt.Errorf("delete the data of logical cluster %q: %w", cluster, err)
		}
	}
}

// look takes one look at a logical cluster: see pass.look.
func (b *Backend) look(ctx context.Context, cluster logicalcluster.Name, hold Hold, some bool, keep []schema.GroupResource) (p *pass, rows [][]seen, complete bool, err error) {
	if err := lc.ValidateName(cluster.String()); err != nil {
		return nil, nil, false, fmt.Errorf("look at the data of a logical cluster: %w", err)
	}
	prefixes, err := b.prefixesOf(ctx, cluster, keep)
	if err == nil {
		p = &pass{backend: b, cluster: cluster, hold: hold, stores: map[string]*Resource{}}
		for _, r := range b.Resources() {
			p.stores[r.Prefix] = r
		}
		rows, complete, err = p.look(ctx, prefixes, some)
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("look at the data of logical cluster %q: %w", cluster, err)
	}
	return p, rows, complete, nil
}

// seen is a row as it was read, at its revision.
type seen struct {
	key      string
	revision int64
}

// pass is one look at the rows of a logical cluster.
type pass struct {
	backend *Backend
	cluster logicalcluster.Name
	hold    Hold
	stores  map[string]*Resource // by prefix
	held    lc.Held
}

// look reads the rows below the prefixes: all, or with less the first of each. It returns those that may go, of each prefix
// the first ones, and whether these are all there are.
func (p *pass) look(ctx context.Context, prefixes []string, less bool) (rows [][]seen, complete bool, err error) {
	complete = true
	for chunk := range slices.Chunk(prefixes, maxOps) {
		counts := make([]clientv3.Op, len(chunk))
		for i, prefix := range chunk {
			counts[i] = clientv3.OpGet(p.start(prefix), clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		got, err := p.backend.client.Txn(ctx).Then(counts...).Commit()
		if err != nil {
			return nil, false, err
		}
		var some []string
		for i, r := range got.Responses {
			if r.GetResponseRange().Count > 0 {
				some = append(some, chunk[i])
			}
		}
		for few := range slices.Chunk(some, maxPage/firstRows) {
			first, after, err := p.first(ctx, few)
			if err != nil {
				return nil, false, err
			}
			for i, prefix := range few {
				if after[i] != "" {
					complete = false
					more, err := p.rest(ctx, prefix, after[i], less)
					if err != nil {
						return nil, false, err
					}
					first[i] = append(first[i], more...)
				}
				if len(first[i]) > 0 {
					rows = append(rows, first[i])
				}
			}
		}
	}
	return rows, complete, nil
}

// first reads the first rows of a few resources, and says after which row there are more.
func (p *pass) first(ctx context.Context, prefixes []string) (rows [][]seen, after []string, err error) {
	done, err := p.turn(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	finds := make([]clientv3.Op, len(prefixes))
	for i, prefix := range prefixes {
		finds[i] = clientv3.OpGet(p.start(prefix), clientv3.WithPrefix(), clientv3.WithLimit(firstRows))
	}
	got, err := p.backend.client.Txn(ctx).Then(finds...).Commit()
	if err != nil {
		return nil, nil, err
	}
	rows, after = make([][]seen, len(prefixes)), make([]string, len(prefixes))
	for i, r := range got.Responses {
		found := (*clientv3.GetResponse)(r.GetResponseRange())
		if rows[i], err = p.see(ctx, prefixes[i], found); err != nil {
			return nil, nil, err
		}
		if found.More {
			after[i] = rows[i][len(rows[i])-1].key
		}
	}
	return rows, after, nil
}

// turn waits until one more page may be read and looked at; callers end it by done.
func (p *pass) turn(ctx context.Context) (done func(), err error) {
	select {
	case p.backend.looks <- struct{}{}:
		return func() { <-p.backend.looks }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pass) start(prefix string) string {
	return join(p.backend.prefix, ClusterKey(prefix, p.cluster, "")) + "/"
}

// rest reads the rows of a resource after one, page by page, and returns up to about deleteBatch of those that may go.
func (p *pass) rest(ctx context.Context, prefix, after string, less bool) (rows []seen, err error) {
	for pages := p.backend.pagesOf(p.start(prefix), after); !pages.done; {
		page, err := p.page(ctx, prefix, pages)
		if err != nil {
			return nil, err
		}
		if len(rows) < deleteBatch {
			rows = append(rows, page...)
		}
		if less && len(rows) >= deleteBatch {
			return rows, nil
		}
	}
	return rows, nil
}

// page reads the next page of a resource, in its turn.
func (p *pass) page(ctx context.Context, prefix string, pages *pages) ([]seen, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	got, err := pages.next(ctx)
	if err != nil {
		return nil, err
	}
	return p.see(ctx, prefix, got)
}

// see notes what is held of some rows of a resource, and returns all of them.
func (p *pass) see(ctx context.Context, prefix string, got *clientv3.GetResponse) ([]seen, error) {
	resource, transformer, locks := p.storedAt(prefix)
	rows := make([]seen, len(got.Kvs))
	for i, kv := range got.Kvs {
		key := string(kv.Key)
		rows[i] = seen{key, kv.ModRevision}
		plain := kv.Value
		if transformer != nil {
			var err error
			if plain, _, err = transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(key)); err != nil {
				return nil, fmt.Errorf("read %s: %w", key, err)
			}
		}
		object, finalizers, err := finalizersOf(resource, plain)
		if err != nil && !locks {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		if len(finalizers) == 0 {
			continue
		}
		waited, err := p.hold(ctx, p.cluster, resource, finalizers)
		if err != nil {
			return nil, fmt.Errorf("see whether to wait for %s %q: %w", resource, object.Name, err)
		}
		if len(waited) > 0 {
			p.held.Add(lc.HeldObject{Resource: resource.WithVersion(""), Namespace: object.Namespace, Name: object.Name, UID: object.UID}, waited, object.DeletionTimestamp != nil)
		}
	}
	return rows, nil
}

// storedAt returns what is stored below a resource prefix and what its values pass through; nil for locks. A store of
// custom resources need not be open: they are at /<group>/<resource>. Other prefixes without a store have locks, or what is
// not served any more.
func (p *pass) storedAt(prefix string) (_ schema.GroupResource, _ value.Transformer, locks bool) {
	if r, ok := p.stores[prefix]; ok {
		return r.GroupResource, r.transformer.inner, false
	}
	group, resource, _ := strings.Cut(strings.TrimPrefix(prefix, "/"), "/")
	if resource == "" {
		return schema.GroupResource{Resource: group}, nil, true
	}
	gr := schema.GroupResource{Group: group, Resource: resource}
	return gr, p.backend.transformerOf(gr), false
}

var protobufPrefix = []byte("k8s\x00")

// finalizersOf returns the metadata and the finalizers of what is stored of an object, as JSON or Protobuf: those of a
// Namespace are in its spec, too, where all have one of Kubernetes' own, which is left out. Bytes that are neither are an
// error.
func finalizersOf(resource schema.GroupResource, plain []byte) (metav1.ObjectMeta, []string, error) {
	stored, isProtobuf := bytes.CutPrefix(plain, protobufPrefix)
	into := func(object interface{ Unmarshal([]byte) error }) error {
		if !isProtobuf {
			// Case matters: a custom resource may have a field Metadata, of any type, beside its metadata.
			return utiljson.Unmarshal(plain, object)
		}
		envelope := &runtime.Unknown{}
		if err := envelope.Unmarshal(stored); err != nil {
			return err
		}
		return object.Unmarshal(envelope.Raw)
	}
	if resource == (schema.GroupResource{Resource: "namespaces"}) {
		ns := &corev1.Namespace{}
		if err := into(ns); err != nil {
			return metav1.ObjectMeta{}, nil, err
		}
		finalizers := slices.Clone(ns.Finalizers)
		for _, f := range ns.Spec.Finalizers {
			if f != corev1.FinalizerKubernetes {
				finalizers = append(finalizers, string(f))
			}
		}
		return ns.ObjectMeta, finalizers, nil
	}
	// Whatever the kind, its metadata is the first field, and fields that are not known are passed over.
	object := &metav1.PartialObjectMetadata{}
	if err := into(object); err != nil {
		return metav1.ObjectMeta{}, nil, err
	}
	return object.ObjectMeta, object.Finalizers, nil
}

// deleteAsSeen removes rows, given by resource, that are still as they were seen. Others stay and are looked at again: they
// may have got a finalizer.
func (b *Backend) deleteAsSeen(ctx context.Context, rows [][]seen) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleteParallel)
	for resources := range slices.Chunk(rows, maxOps) {
		all := 0
		for _, of := range resources {
			all += len(of)
		}
		for _, some := range transactions(resources, all) {
			group.Go(func() error {
				as := make([]clientv3.Cmp, len(some))
				removes := make([]clientv3.Op, len(some))
				for i, row := range some {
					as[i] = clientv3.Compare(clientv3.ModRevision(row.key), "=", row.revision)
					removes[i] = clientv3.OpDelete(row.key)
				}
				_, err := b.client.Txn(ctx).If(as...).Then(removes...).Commit()
				return err
			})
		}
	}
	return group.Wait()
}
