// Package cli is what the commands of cmd/atoll share: which kubeconfig they use, which Atoll and workspace it points
// to, what a person means by "shop", ".." or "root:org", and how a kubeconfig is switched to another workspace.
//
// It reads a kubeconfig (Locate) and writes two contexts of it, CurrentContext and PreviousContext, together with the
// clusters of the same names; nothing else in the file changes.
//
// What always holds: a workspace is entered only after the server said that it is there; paths and kubeconfigs are
// decided by pure functions (ParseAddress, ResolvePath, Enter, Back).
//
// Read hub.go first.
package cli
