// Package customresources serves, in every logical cluster, CustomResourceDefinitions and the objects that they define.
//
// Definitions are in upstream's registry over server/storage, without a watch cache: decoded they are the largest objects
// there are. One watch of the rows of all logical clusters (feed.go), from which clients' watches are served, too, keeps all
// of them as Definitions (definition.go), with one spec in memory for all that have an equal one (intern.go). Clients hear
// of nothing that these do not say. A reconciler that all logical clusters share (reconcile.go) gives new ones their names
// and conditions, decided by pure functions (names.go, conditions.go), in one write.
//
// A request that nothing built-in answers comes to the router (router.go) after authentication, authorisation and limits. It
// finds the definition by logical cluster and name, and hands the request to upstream's handler of custom resources for the
// definition's hash (instances.go): one for all logical clusters whose definitions have equal specs and names, but where a webhook
// converts, made for the first request and ended with the last definition. Which logical cluster a request is for is in its context, where
// storage finds it. Rows are at <prefix>/<group>/<resource>/<cluster>/[<namespace>/]<name>, in plain JSON; they have no watch
// cache either, because one would read the objects of all logical clusters by the schema of one.
//
// It reads and writes CustomResourceDefinitions: their status, and the finalizer
// customresourcecleanup.apiextensions.k8s.io. Of a definition that is deleted it deletes the objects (finalize.go).
//
// What always holds:
//
//   - An object is read, defaulted, pruned and validated by the definition that its own logical cluster has now. Watches end
//     when it changes. On /clusters/* custom resources are refused: there is no one schema for them.
//   - Names conflict within one logical cluster only, with other definitions and with built-in resources.
//   - A resource is served before anybody is told that it is established; what this process has not heard of yet is read
//     from etcd before it is said not to exist.
//   - A definition goes when its logical cluster has no object of it, and takes no other logical cluster's objects along. An
//     object is created in one transaction with a look at its definition: none outlives it, whichever server creates it, and
//     a server that is late with those of one that is gone deletes none of another definition of its name.
//   - While an import fills a logical cluster, no definition of it goes: its objects may come after it.
//   - A definition costs a logical cluster its metadata and status in memory, and no goroutine or watch of its own.
//     Upstream's metrics have series by group and resource: names that tenants choose, and that stay after them.
//
// The server installs and runs it. When etcd is away, requests fail as those for built-in resources without a cache do, and
// what is known of definitions stays; the watch catches up when it is back.
//
// Conversion webhooks are called as server/webhooks calls them. A definition that names a Service for it has an instance of its own in
// each logical cluster, which knows whose Service is meant.
//
// Upstream's own apiextensions-apiserver is not used as a whole because each of its controllers, and its handler, keep
// definitions by name. Discovery and OpenAPI documents are made from Definitions by others (server/discovery).
//
// Read definition.go first, then router.go and instances.go.
package customresources
