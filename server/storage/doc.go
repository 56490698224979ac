// Package storage serves every logical cluster from one store, with Kubernetes' own registries unchanged on top.
//
// A Backend is the RESTOptionsGetter of every registry. Each registry gets a stack of layers, outermost first:
//
//	clusterStorage   takes the logical cluster from the request's context, puts it into the key, forces the annotation
//	                 kcp.io/cluster, and answers wildcard requests                              (cluster.go, watchlist.go)
//	sharedObjects    bootstrap objects that every logical cluster has without a row             (shared.go), optional;
//	                 those that were reset leave a row that counts for nothing else             (reset.go)
//	followed         serves watches of single logical clusters from the one of all of them     (followed.go), of definitions
//	noPlaceholders   keeps a row that cannot be read the trouble of its own logical cluster     (unreadable.go)
//	bounded          ends watches that etcd serves and whose reader is too slow                (backlog.go), without a watch cache
//	dispatch         files a watcher under its logical cluster in the cacher                    (dispatch.go)
//	CacheDelegator   upstream's watch cache, one for each resource type, all logical clusters   (decorator.go), optional;
//	                 it reads etcd on a stream of its own and asks for progress at once         (feed.go),
//	                 and forgets old events when its resource is quiet                          (history.go)
//	etcd3 store      upstream's, with a codec and a transformer that know the cluster           (codec.go),
//	                 and long definitions compressed                                            (compressed.go)
//
// It reads and writes the rows <prefix>/<resource>/<cluster>/[<namespace>/]<name>, where prefix is /registry; the locks
// <prefix>/<kind>/<cluster>/<key> (exclusive.go); /atoll/charges/ and /atoll/limits/ beside ResourceQuotas (charges.go); and
// /atoll/prefixes/, the list of resource prefixes that ever held rows.
//
// Rows are created only in namespaces, and in logical clusters, that are there and do not end (homes.go), and those of custom resources
// only while their definition is as the request knows it (guard.go). What was charged to a
// ResourceQuota is written only while that is so, and limits are those that the request knows of (charges.go).
//
// RewriteStale (rewrite.go) writes rows anew that are not encrypted as they would be now.
//
// WriteTogether (together.go) writes objects of several resources in one transaction, as each store would by itself.
//
// Export and Ready read and write the rows of one logical cluster as plain bytes (export.go, import.go). What Ready would not
// take is counted and left out.
//
// What each logical cluster has in etcd is bounded by Limits, where a store writes its rows (limited.go): a logical cluster is
// counted when somebody who is bounded first writes to it (count.go), and what is written after that is added (usage.go). None
// that is idle for an hour is remembered.
//
// What always holds:
//
//   - A request without a logical cluster in its context is refused, and the error names the resource and the verb. A
//     forgotten path fails; it never reads or writes another logical cluster.
//   - The logical cluster of an object is the one in its key. Rows are plain Kubernetes bytes (encrypted if so
//     configured, else long definitions compressed): the annotation is stripped on write and set from the key on read, so nobody can spoof it, and a row
//     that is copied to another logical cluster's key is that cluster's object.
//   - On the wildcard there is list and watch only; a namespace or name there is a filter, never part of a key prefix.
//   - A transaction of etcd holds at most one row of a resource: a watch cache is as new as the last event it took, and
//     would count a second one of that revision as seen.
//   - A watcher of one logical cluster costs the others nothing: events are dispatched by cluster, and a watch starts by
//     reading the range of its own cluster.
//
// The start command makes the Backend after the etcd client and destroys it before. When etcd is away, reads at
// resourceVersion 0 go on from the caches, everything else fails with etcd's error; caches catch up when it is back.
//
// Upstream's own decorator (genericregistry.StorageWithCacher) is not used because it opens one gRPC client for each
// resource, and because its cache, filled by a streaming list, keys objects by namespace and name alone: of a thousand
// logical clusters' objects with one name it would keep one.
package storage
