// Package discovery says what each logical cluster serves: its custom resources among the built-in types, in the documents
// by which clients find kinds (/apis and below it) and learn their fields (/openapi/v2 and /openapi/v3).
//
// It stands around the generic server's own endpoints, behind authorisation, and knows the logical cluster of a request by
// its context. Where a logical cluster has no definitions, or a request names none, the generic server answers: same bytes,
// same ETag, no work. Else the answer is made from the generic server's document and from what the definitions add.
//
// It reads the definitions that customresources serves, at the moment of the request, and writes nothing. So what it says
// is never older than what is served, and there is nothing to start, to keep up to date, or to lose when etcd is away.
//
// What always holds: no definition of one logical cluster shows in a document of another. Documents are made of the
// definitions that Served returned for the logical cluster in the context, and are found again by the hashes of just those,
// which are equal only for definitions that are served alike.
//
// Discovery is cheap and made for each request. OpenAPI is not: its documents are kept, compressed, as long as they fit in
// a fixed number of bytes for all logical clusters together, the ones longest unused going first. They are made one at a
// time for a logical cluster and a few for all (turns.go), each of so many definitions as fit: what one logical cluster
// defines does not keep the others waiting. A logical cluster costs nothing here.
//
// Read handler.go first, then resources.go (what a definition adds, pure) and openapi.go.
package discovery
