package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// exportRows is how many rows are read at a time: of the largest size they are some 30 MiB.
const exportRows = 20

// PlainRow is what is stored of one object of a logical cluster, decrypted; or a lock of Exclusive.
type PlainRow struct {
	// Resource it is of; of a lock, its kind.
	Resource schema.GroupResource
	// Prefix of the resource, and the Key below it and the logical cluster: [<namespace>/]<name>.
	Prefix, Key string
	// Custom says that it is an object of a CustomResourceDefinition.
	Custom bool
	Value  []byte
}

// Export is a logical cluster as it was at one revision.
type Export struct {
	Revision int64
	// LeftOut says what is stored and not passed on, as "widgets.shop.example (3)": rows of resources that are not served any
	// more, or whose definition went before there were records of custom resources. Nobody can read them, nor import them.
	LeftOut []string

	backend  *Backend
	cluster  logicalcluster.Name
	prefixes []string
	custom   []string
}

// Export begins to read everything that a logical cluster stores and Ready takes, with the locks of the given kinds. The
// store forgets a revision after about five minutes; who reads longer gets an error.
func (b *Backend) Export(ctx context.Context, cluster logicalcluster.Name, locks []string) (*Export, error) {
	e := &Export{backend: b, cluster: cluster}
	if err := lc.ValidateName(cluster.String()); err != nil {
		return nil, fmt.Errorf("export a logical cluster: %w", err)
	}
	// What was recorded before and after the revision holds all that has rows at it.
	for range 2 {
		prefixes, err := b.prefixesOf(ctx, cluster, nil)
		if err != nil {
			return nil, fmt.Errorf("export logical cluster %q: %w", cluster, err)
		}
		custom, err := b.customPrefixes(ctx, cluster)
		if err != nil {
			return nil, fmt.Errorf("export logical cluster %q: %w", cluster, err)
		}
		e.prefixes, e.custom = append(e.prefixes, prefixes...), append(e.custom, custom...)
		if e.Revision == 0 {
			got, err := b.client.Get(ctx, prefixesKey, clientv3.WithCountOnly())
			if err != nil {
				return nil, fmt.Errorf("export logical cluster %q: %w", cluster, err)
			}
			e.Revision = got.Header.Revision
		}
	}
	slices.Sort(e.prefixes)
	e.prefixes = slices.Compact(e.prefixes)
	if err := e.leaveOut(ctx, locks); err != nil {
		return nil, fmt.Errorf("export logical cluster %q: %w", cluster, err)
	}
	return e, nil
}

// leaveOut takes out what Ready would refuse, and counts what is there of it.
func (e *Export) leaveOut(ctx context.Context, locks []string) error {
	p := &pass{backend: e.backend, cluster: e.cluster}
	var taken, others []string
	for _, prefix := range e.prefixes {
		if _, builtin := e.backend.builtinAt(prefix); builtin || slices.Contains(e.custom, prefix) || slices.Contains(locks, strings.TrimPrefix(prefix, "/")) {
			taken = append(taken, prefix)
		} else {
			others = append(others, prefix)
		}
	}
	e.prefixes = taken
	for chunk := range slices.Chunk(others, maxOps) {
		counts := make([]clientv3.Op, len(chunk))
		for i, prefix := range chunk {
			counts[i] = clientv3.OpGet(p.start(prefix), clientv3.WithPrefix(), clientv3.WithRev(e.Revision), clientv3.WithCountOnly())
		}
		got, err := e.backend.client.Txn(ctx).Then(counts...).Commit()
		if err != nil {
			return fmt.Errorf("count what is not served any more: %w", err)
		}
		for i, r := range got.Responses {
			if n := r.GetResponseRange().Count; n > 0 {
				resource, _, _ := p.storedAt(chunk[i])
				e.LeftOut = append(e.LeftOut, fmt.Sprintf("%s (%d)", resource, n))
			}
		}
	}
	return nil
}

// Rows passes on the rows, resource by resource. A row that cannot be decrypted is an error.
func (e *Export) Rows(ctx context.Context, each func(PlainRow) error) error {
	p := &pass{backend: e.backend, cluster: e.cluster, stores: map[string]*Resource{}}
	for _, r := range e.backend.Resources() {
		p.stores[r.Prefix] = r
	}
	for _, prefix := range e.prefixes {
		if err := e.resource(ctx, p, prefix, each); err != nil {
			return fmt.Errorf("export logical cluster %q: %w", e.cluster, err)
		}
	}
	return nil
}

func (e *Export) resource(ctx context.Context, p *pass, prefix string, each func(PlainRow) error) error {
	resource, transformer, _ := p.storedAt(prefix)
	start := p.start(prefix)
	end := clientv3.GetPrefixRangeEnd(start)
	for from := start; ; {
		got, err := e.backend.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(e.Revision), clientv3.WithLimit(exportRows))
		if err != nil {
			return fmt.Errorf("read %s: %w", resource, err)
		}
		for _, kv := range got.Kvs {
			key := string(kv.Key)
			row := PlainRow{Resource: resource, Prefix: prefix, Key: key[len(start):], Custom: slices.Contains(e.custom, prefix), Value: kv.Value}
			if transformer != nil {
				if row.Value, _, err = transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(key)); err != nil {
					return fmt.Errorf("read %s: %w", key, err)
				}
			}
			if err := each(row); err != nil {
				return err
			}
			from = key + "\x00"
		}
		if !got.More {
			return nil
		}
	}
}
