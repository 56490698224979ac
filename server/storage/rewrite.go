package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

const (
	// rewriteParallel is how many rows are written at once; as deleteParallel, and less, since nobody waits for it.
	rewriteParallel = 8
	// rewriteTold is how many rows are written between two words about the progress.
	rewriteTold = 10000
	// rewritePasses are enough unless servers disagree.
	rewritePasses = 5
	// mostNamed is how many of the rows are named that cannot be decrypted, or written.
	mostNamed = 20
)

// definitionsResource is that of which long rows are compressed.
var definitionsResource = apiextensions.Resource("customresourcedefinitions")

// Rewritten is what RewriteStale did.
type Rewritten struct {
	// Read are the rows looked at, Written those written anew.
	Read, Written int64
	// Unreadable are those that cannot be decrypted; of them the keys of the first few are in Named.
	Unreadable int64
	Named      []string
	// TooLong are those that are longer than etcd takes, as they would be written, and TooLongNamed the keys of the first few.
	TooLong      int64
	TooLongNamed []string
}

// kindOfRows are rows of one kind: below base, encrypted by transformer.
type kindOfRows struct {
	base        string
	transformer value.Transformer
}

// RewriteStale writes every row anew that is not encrypted as it would be written now: of all logical clusters, mirrors and
// custom resources among them, and of the installation. It goes on until nothing is stale; with more than one server each may
// do it, and at the same time. What the rows say stays the same to the byte, and so does their lease; a watcher sees an
// object that differs by its resourceVersion alone. A row that somebody else writes meanwhile is his.
//
// While the store is nearly full it waits until a compaction makes room.
//
// Rows that cannot be decrypted are counted and left alone, as are those that would be longer than etcd takes. It is an error if others write stale rows all the time. After an
// error it can be called again.
func (b *Backend) RewriteStale(ctx context.Context) (Rewritten, error) {
	var total Rewritten
	if b.transform == nil {
		return total, nil
	}
	for range rewritePasses {
		kinds, err := b.kindsOfRows(ctx, b.transformerOf)
		if err != nil {
			return total, err
		}
		pass := &rewrite{backend: b, before: total.Written}
		for _, k := range kinds {
			if err := pass.below(ctx, k); err != nil {
				return total, fmt.Errorf("write the rows below %s anew, after %d rows: %w", k.base, pass.before+pass.written.Load(), err)
			}
		}
		written := pass.written.Load()
		total = Rewritten{
			Read: pass.read, Written: total.Written + written, Unreadable: pass.unreadable, Named: pass.named, TooLong: pass.tooLong, TooLongNamed: pass.tooLongNamed,
		}
		// What was under way with the key of before may have come behind the pass.
		if written == 0 && pass.lost.Load() == 0 {
			return total, nil
		}
	}
	return total, fmt.Errorf("after %d passes and %d rows written there are still others: does another server of this etcd write with another first key?", rewritePasses, total.Written)
}

// kindsOfRows lists all kinds of rows that may be encrypted, with what those of a resource pass through; last those that grow by it.
func (b *Backend) kindsOfRows(ctx context.Context, transformer func(schema.GroupResource) value.Transformer) ([]kindOfRows, error) {
	byBase := map[string]value.Transformer{}
	custom, err := b.allCustom(ctx)
	if err != nil {
		return nil, err
	}
	for _, gr := range custom {
		byBase[join(b.prefix, uncachedPrefix(gr))] = transformer(gr)
	}
	for _, r := range b.Resources() {
		byBase[r.transformer.base] = transformer(r.GroupResource)
	}
	// Above the logical clusters.
	byBase[strings.TrimSuffix(installationKey, "/")] = transformer(installationResource)
	// Definitions grow by what they were compressed: where there is no room for that, nothing else waits for it.
	last := join(b.prefix, uncachedPrefix(definitionsResource))
	bases := slices.DeleteFunc(slices.Sorted(maps.Keys(byBase)), func(base string) bool { return base == last })
	if byBase[last] != nil {
		bases = append(bases, last)
	}
	var all []kindOfRows
	for _, base := range bases {
		all = append(all, kindOfRows{base, byBase[base]})
	}
	return all, nil
}

// allCustom are the custom resources that any logical cluster may have objects of.
func (b *Backend) allCustom(ctx context.Context) ([]schema.GroupResource, error) {
	found := map[schema.GroupResource]bool{}
	// From the time before there were records there are prefixes, of which nobody knows what they are of if nothing is open.
	if err := b.loadPrefixes(ctx); err != nil {
		return nil, err
	}
	for _, p := range b.knownPrefixes() {
		if group, resource, ok := strings.Cut(strings.TrimPrefix(p, "/"), "/"); ok && strings.Contains(group, ".") && !strings.Contains(resource, "/") {
			found[schema.GroupResource{Group: group, Resource: resource}] = true
		}
	}
	err := b.eachPage(ctx, customKey, func(got *clientv3.GetResponse) error {
		for _, kv := range got.Kvs {
			// <cluster>/<group>/<resource>
			if parts := strings.Split(strings.TrimPrefix(string(kv.Key), customKey), "/"); len(parts) == 3 {
				found[schema.GroupResource{Group: parts[1], Resource: parts[2]}] = true
			}
		}
		return nil
	}, clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("read which custom resources there are: %w", err)
	}
	definitions := join(b.prefix, uncachedPrefix(definitionsResource)) + "/"
	err = b.eachPage(ctx, definitions, func(got *clientv3.GetResponse) error {
		for _, kv := range got.Kvs {
			// <cluster>/<resource>.<group>
			_, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), definitions), "/")
			if resource, group, ok := strings.Cut(name, "."); ok {
				found[schema.GroupResource{Group: group, Resource: resource}] = true
			}
		}
		return nil
	}, clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("read which custom resources are defined: %w", err)
	}
	return slices.Collect(maps.Keys(found)), nil
}

// eachPage reads the rows below prefix, each page as it is then.
func (b *Backend) eachPage(ctx context.Context, prefix string, page func(*clientv3.GetResponse) error, options ...clientv3.OpOption) error {
	for p := b.pagesOf(prefix, "", options...); !p.done; {
		got, err := p.next(ctx)
		if err != nil {
			return err
		}
		if err := page(got); err != nil {
			return err
		}
	}
	return nil
}

// rewrite is one pass over all rows.
type rewrite struct {
	backend       *Backend
	before        int64 // written by passes before
	read          int64
	looked        time.Time    // for room
	written, lost atomic.Int64 // lost are those that somebody else wrote meanwhile

	mu                  sync.Mutex // guards what follows
	unreadable, tooLong int64
	named, tooLongNamed []string
}

// leave counts a row that is left as it is.
func (r *rewrite) leave(count *int64, named *[]string, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *count++; len(*named) < mostNamed {
		*named = append(*named, key)
	}
}

func (r *rewrite) below(ctx context.Context, k kindOfRows) error {
	return r.backend.eachPage(ctx, k.base+"/", func(got *clientv3.GetResponse) error {
		if err := r.room(ctx); err != nil {
			return err
		}
		r.read += int64(len(got.Kvs))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(rewriteParallel)
		for _, kv := range got.Kvs {
			if isPlain(string(kv.Key)) {
				continue
			}
			group.Go(func() error { return r.row(ctx, k.transformer, string(kv.Key), kv.Value, kv.ModRevision) })
		}
		return group.Wait()
	})
}

// row writes one row anew if it is stale: one in a transaction, as doc.go wants it of every resource.
func (r *rewrite) row(ctx context.Context, transformer value.Transformer, key string, data []byte, revision int64) error {
	plain, stale, err := transformer.TransformFromStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.leave(&r.unreadable, &r.named, key)
		klog.FromContext(ctx).V(2).Info("A row cannot be decrypted", "key", key, "err", err)
		return nil
	}
	if !stale {
		return nil
	}
	encrypted, err := transformer.TransformToStorage(ctx, plain, value.DefaultContext(key))
	if err != nil {
		return fmt.Errorf("encrypt %s: %w", key, err)
	}
	// Events keep their lease, and with it their end.
	done, err := r.backend.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(encrypted), clientv3.WithIgnoreLease())).
		Commit()
	if errors.Is(err, rpctypes.ErrRequestTooLarge) { // one that somebody made so long holds up nobody else's
		r.leave(&r.tooLong, &r.tooLongNamed, key)
		return nil
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	if !done.Succeeded {
		r.lost.Add(1)
		return nil
	}
	if n := r.before + r.written.Add(1); n%rewriteTold == 0 {
		klog.FromContext(ctx).Info("Writing rows anew with the first key", "written", n, "at", key)
	}
	return nil
}
