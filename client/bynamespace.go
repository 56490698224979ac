package client

// ByNamespace has something of objects, by their namespaces: a map of maps by name, so that those of a namespace are found without a look at others.
// Of a namespace in which there is nothing it keeps nothing. Its keys have no name; it is made as a map is, and changed by Put and Delete.
type ByNamespace[T any] map[Key]map[string]T

// In returns what there is in the namespace of a key, by name; nil for nothing. What it has may be replaced there.
func (b ByNamespace[T]) In(k Key) map[string]T { return b[k.Space()] }

// Put has b know is of an object.
func (b ByNamespace[T]) Put(k Key, is T) {
	in := k.Space()
	if b[in] == nil {
		b[in] = map[string]T{}
	}
	b[in][k.Name] = is
}

// Delete has b know nothing of an object.
func (b ByNamespace[T]) Delete(k Key) {
	in := k.Space()
	delete(b[in], k.Name)
	if len(b[in]) == 0 {
		delete(b, in)
	}
}
