// Command coredns is CoreDNS, unmodified, with what a real node needs of its plugins: upstream's own main takes in the libraries of three
// clouds. It has its own module, since it imports what go.mod has not; the libraries that both have are of go.mod's versions (.ci/modules).
package main
