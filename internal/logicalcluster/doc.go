// Package logicalcluster carries the logical cluster of a request through its context, and says what may be the name of one.
//
// It builds on github.com/kcp-dev/logicalcluster/v3, whose Name and Path are the words on the wire, and adds what a
// server needs: the request's Cluster in a context, the strict rule for names that become a segment of a storage key, and
// fresh names.
//
// What always holds: a Cluster in a context was put there by the server's path handling or by in-process code on purpose,
// never by a client's header or object; a name that passes ValidateName is exactly one segment of a storage key.
package logicalcluster
