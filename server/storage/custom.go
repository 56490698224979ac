package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// customKey is below which is recorded, with an empty row, that a logical cluster may have objects of a custom resource:
// <cluster>/<group>/<resource>.
const customKey = "/atoll/custom/"

// RecordCustom records that a logical cluster may have objects of a custom resource, before it has the first, until
// ForgetCustom or DeleteClusterData. Its definition is no such record: whoever may change it can have it gone before them.
// Of a logical cluster that is no more nothing is recorded: nobody would take that away.
func (b *Backend) RecordCustom(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource) error {
	key := customRecord(cluster, gr)
	got, err := b.client.Get(ctx, key, clientv3.WithCountOnly())
	if err == nil && got.Count == 0 { // a read costs no disk
		var there []clientv3.Cmp
		if there, err = b.isThere(ctx, cluster, gr); err == nil {
			_, err = b.client.Txn(ctx).If(there...).Then(clientv3.OpPut(key, "")).Commit()
		}
	}
	if err != nil {
		return fmt.Errorf("record that logical cluster %q has %s: %w", cluster, gr, err)
	}
	return nil
}

// ForgetCustom takes back RecordCustom if the definition's last change has that revision, and says whether it did. Callers
// know that there are no objects, and will be none of that definition; another one puts itself on record.
func (b *Backend) ForgetCustom(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource, revision int64) (forgotten bool, err error) {
	got, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(b.definitionsOf(cluster)+gr.String()), "=", revision)).
		Then(clientv3.OpDelete(customRecord(cluster, gr))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("forget that logical cluster %q had %s: %w", cluster, gr, err)
	}
	return got.Succeeded, nil
}

// definitionsOf is what the keys of a logical cluster's CustomResourceDefinitions begin with; names follow.
func (b *Backend) definitionsOf(cluster logicalcluster.Name) string {
	return join(b.prefix, ClusterKey(uncachedPrefix(definitionsResource), cluster, "")) + "/"
}

func customRecord(cluster logicalcluster.Name, gr schema.GroupResource) string {
	return customKey + string(cluster) + uncachedPrefix(gr)
}

// recordsOf is what the keys of a logical cluster's records begin with.
func recordsOf(cluster logicalcluster.Name) string { return customKey + string(cluster) + "/" }

// CustomResources are those that a logical cluster may have objects of, as etcd has it now, and those that the caller knows to be
// defined there, ordered by name: versions before there were records established definitions without, which a server puts on
// record when it starts. Definitions are not read: for a range of keys alone, too, etcd copies them whole, megabytes each.
func (b *Backend) CustomResources(ctx context.Context, cluster logicalcluster.Name, defined []schema.GroupResource) ([]schema.GroupResource, error) {
	records := recordsOf(cluster)
	got, err := b.client.Get(ctx, records, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("custom resources of logical cluster %q: %w", cluster, err)
	}
	all := recordedIn(got.Kvs, records).Insert(defined...).UnsortedList()
	slices.SortFunc(all, func(x, y schema.GroupResource) int { return strings.Compare(x.String(), y.String()) })
	return all, nil
}

// customPrefixes are the resource prefixes of what is on record and of what etcd has definitions of. It records those that are
// not, also of a logical cluster that is no more: when everything is deleted, definitions may go before the last of their
// objects, and the server may end between.
func (b *Backend) customPrefixes(ctx context.Context, cluster logicalcluster.Name) ([]string, error) {
	recorded, defined, err := b.customOf(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for _, gr := range defined {
		if recorded.Has(gr) {
			continue
		}
		if _, err := b.client.Put(ctx, customRecord(cluster, gr), ""); err != nil {
			return nil, fmt.Errorf("record that it has %s: %w", gr, err)
		}
		recorded.Insert(gr)
	}
	prefixes := make([]string, 0, len(recorded))
	for gr := range recorded {
		prefixes = append(prefixes, uncachedPrefix(gr))
	}
	slices.Sort(prefixes)
	return prefixes, nil
}

// customOf returns the custom resources that a logical cluster has on record, and those it has definitions of, which before
// there were records were established without.
func (b *Backend) customOf(ctx context.Context, cluster logicalcluster.Name) (recorded sets.Set[schema.GroupResource], defined []schema.GroupResource, err error) {
	records := recordsOf(cluster)
	definitions := b.definitionsOf(cluster)
	got, err := b.client.Txn(ctx).Then(
		clientv3.OpGet(records, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(definitions, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return nil, nil, fmt.Errorf("read which custom resources it has: %w", err)
	}
	recorded = recordedIn(got.Responses[0].GetResponseRange().Kvs, records)
	for _, kv := range got.Responses[1].GetResponseRange().Kvs {
		// Validation holds their names to <resource>.<group>.
		if resource, group, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), definitions), "."); ok {
			defined = append(defined, schema.GroupResource{Group: group, Resource: resource})
		}
	}
	return recorded, defined, nil
}

// recordedIn are the custom resources that some records are of.
func recordedIn(kvs []*mvccpb.KeyValue, records string) sets.Set[schema.GroupResource] {
	recorded := sets.Set[schema.GroupResource]{}
	for _, kv := range kvs {
		if group, resource, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), records), "/"); ok {
			recorded.Insert(schema.GroupResource{Group: group, Resource: resource})
		}
	}
	return recorded
}

// CountCustom is how many objects of its CustomResources a logical cluster has in a namespace, as etcd has it now, whether or not
// anybody serves them: nothing of them is read but the numbers. Those without any are left out.
func (b *Backend) CountCustom(ctx context.Context, cluster logicalcluster.Name, namespace string, defined []schema.GroupResource) (map[schema.GroupResource]int64, error) {
	failed := func(err error) (map[schema.GroupResource]int64, error) {
		return nil, fmt.Errorf("count the custom resources in namespace %q of logical cluster %q: %w", namespace, cluster, err)
	}
	if err := lc.ValidateName(cluster.String()); err != nil {
		return failed(err)
	}
	all, err := b.CustomResources(ctx, cluster, defined)
	if err != nil {
		return failed(err)
	}
	counts := map[schema.GroupResource]int64{}
	for some := range slices.Chunk(all, maxOps) {
		ops := make([]clientv3.Op, len(some))
		for i, gr := range some {
			key := join(b.prefix, ClusterKey(uncachedPrefix(gr), cluster, namespace)) + "/"
			ops[i] = clientv3.OpGet(key, clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		got, err := b.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return failed(err)
		}
		for i, gr := range some {
			if n := got.Responses[i].GetResponseRange().Count; n > 0 {
				counts[gr] = n
			}
		}
	}
	return counts, nil
}

// forgetRecords removes the records of a logical cluster that has no rows any more.
func (b *Backend) forgetRecords(ctx context.Context, cluster logicalcluster.Name) error {
	_, err := b.client.Delete(ctx, recordsOf(cluster), clientv3.WithPrefix())
	return err
}

// ForgetEmptyPrefixes removes, of the prefixes that were remembered before custom resources were recorded for each logical
// cluster, those that are of custom resources and have no rows. Those with rows stay, until a start finds them empty: their
// definitions may be gone. It is called when all stores of what is built in are open, since some of their prefixes look alike.
func (b *Backend) ForgetEmptyPrefixes(ctx context.Context) error {
	candidates, err := b.prefixesOfBefore(ctx)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(candidates, maxOps) {
		if err := b.forgetEmpty(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// prefixesOfBefore are the remembered prefixes that may be of custom resources: neither is a store of this server there, nor did
// another server say that they are built in, which it may be of another version.
func (b *Backend) prefixesOfBefore(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, prefixTimeout)
	defer cancel()
	got, err := b.client.Get(ctx, prefixesKey, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read the resource prefixes: %w", err)
	}
	var found []string
	for _, kv := range got.Kvs {
		prefix := "/" + strings.TrimPrefix(string(kv.Key), prefixesKey)
		if _, custom := b.customAt(prefix); custom && string(kv.Value) != builtIn {
			found = append(found, prefix)
		}
	}
	return found, nil
}

// forgetEmpty forgets those of some prefixes, at most maxOps, that have no rows.
func (b *Backend) forgetEmpty(ctx context.Context, some []string) error {
	ctx, cancel := context.WithTimeout(ctx, prefixTimeout)
	defer cancel()
	finds := make([]clientv3.Op, len(some))
	for i, p := range some {
		finds[i] = clientv3.OpGet(join(b.prefix, p)+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	}
	found, err := b.client.Txn(ctx).Then(finds...).Commit()
	if err != nil {
		return fmt.Errorf("look for rows of the resource prefixes: %w", err)
	}
	var empty []string
	var removes []clientv3.Op
	for i, p := range some {
		if len(found.Responses[i].GetResponseRange().Kvs) == 0 {
			empty = append(empty, p)
			removes = append(removes, clientv3.OpDelete(prefixesKey+p[1:]))
		}
	}
	if len(removes) == 0 {
		return nil
	}
	if _, err := b.client.Txn(ctx).Then(removes...).Commit(); err != nil {
		return fmt.Errorf("forget resource prefixes without rows: %w", err)
	}
	for _, p := range empty {
		b.forgetPrefix(p)
	}
	return nil
}

func (b *Backend) forgetPrefix(prefix string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.prefixes, prefix)
}
