// Command coredns is CoreDNS with the plugin of package workspaces, by which pods find Services under the names that these have in their
// workspace. Of CoreDNS's own plugins it has those that a cluster's Corefile names as a rule, and none that brings in the libraries of a cloud.
// It has its own module, since it imports what go.mod has not; the libraries that both have are of go.mod's versions (.ci/modules).
package main
