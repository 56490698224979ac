// Package alike holds once what is alike in objects that are held for long, as watch caches and informers hold those of all
// logical clusters: most objects of one logical cluster have the one annotation that names it, each workspace has namespaces of the same
// names, with a label that says them, each namespace has a ConfigMap with the same root CA, the pods of a workload have its labels, and an informer
// holds what a watch cache does. A map of a few entries takes some 340 bytes beside what they say.
//
// What always holds: what a cache or informer holds nobody may change, the parts of objects as little as objects (upstream's caches give out
// shallow copies); who changes one has copied it, its maps as well. Here a part may be of objects of several logical clusters.
package alike
