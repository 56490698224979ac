// Package identity gives every workspace ServiceAccount tokens of its own: an issuer per workspace, and one set of signing
// keys for the installation.
//
// A token of the workspace X says in its issuer <server URL>/clusters/X. Who shows it is, in X, the ServiceAccount that it
// was issued to, for as long as that ServiceAccount, and the Pod, Secret or Node it is bound to, are there, which is read
// from the store, once a second for a token that is used (remembered.go), and again when this server has deleted any such
// (ended.go); in between the watch cache has to have them. A Node is there while its physical cluster is, whatever policies say
// (server/nodes). Everywhere else it is refused; it never means the ServiceAccount of the same name there.
// A client that knows only the server's address and such a token lands in the workspace that issued it.
//
// An issuer begins with the URL that the server had. With each key are the URLs of all servers that signed with it, and
// tokens by all of them are taken. A token that a key of ours signed is ours, whatever its issuer says: refused if it is not
// valid here, and shown to nobody else.
//
// The keys are one row of the installation (Keys): made by whichever server first finds none, by a transaction, so that all
// servers on one etcd have the same; encrypted as Secrets are; reached by no request. A key signs for 30 days. The next one
// is published a day before it signs, and the last one verifies until no token that it signed can be valid. It is kept in the
// row for as long again: one server drops it for all, and its clock may be wrong. Each server
// reads the row when it needs a key and has not read it for a minute: there is no goroutine, and nothing per workspace.
//
// It reads ServiceAccounts, Pods, Secrets and Nodes, and writes its row. The server starts it. When etcd is down tokens
// verify with the keys read last, and are taken if the watch cache has the ServiceAccount; else that is undecided (SayUndecided),
// and not refused. None is issued.
//
// What always holds: nothing of a token is believed before its signature is verified; and no key or token is in a log or an
// error.
//
// It has room in a request's context for the end of the credential that the request came with, whoever took that, and for that
// this could not be found out (credential.go).
//
// Read tokens.go first, then rotation.go.
package identity
