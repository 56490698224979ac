// Command image writes the OCI image of Atoll as one file, without a container engine and without a registry.
//
// It reads a program that is built already (bin/atoll of linux, linked statically), and writes an image of one layer: the program, the
// certificate authorities that it trusts where nothing else is said, and the directory that it keeps everything in. Nothing is
// taken from the machine that it runs on.
//
// What always holds: equal inputs give equal files, to the bit; every time in it is that of --created, which the Makefile takes from
// the commit. The platform is that of the program. A program that needs a dynamic linker is refused, since the image has none.
// The file gets its name only once it is whole.
//
// The file is an OCI layout in a tar, for containerd, podman, skopeo and crane, with the list that "docker load" looks for beside the
// index. It is not what ko makes, which builds programs, too, and would compile everything with flags of its own.
//
// The Makefile starts it ("make image"); docs/install.md says how to use what it makes. Read image.go first.
package main
