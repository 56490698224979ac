// Package realnodes tests what simulated pods cannot show, with pods that truly run: contrib/realnode, which is a kubelet, containerd and runc in namespaces of their own.
//
// A machine may not allow that. What it lacks is asked first, and a test that is skipped says it; a reason that is not in skips.tsv fails. The list only gets shorter.
//
// What runs in the pods is app, one program with all that the tests ask for, and the image of "make image". Tests use free ports, directories of their own and
// namespaces of their own; nothing they start outlives them, which TestNothingStays shows.
package realnodes
