// Command operator is an operator as people write them with controller-runtime: a definition with two versions and a
// conversion webhook between them, admission webhooks, a finalizer, owner references, a status and a leader.
//
// A Poster (posters.print.example) is printed as a ConfigMap of its name, which it owns. What was taken down is written
// into the ConfigMap "archive" of its namespace before the Poster may go. One of several processes prints at a time, the one
// that holds the Lease "printer"; all of them answer webhooks.
//
// It is a module of its own, so that the server depends on nothing of it. manifests/ is what its user applies.
package main
