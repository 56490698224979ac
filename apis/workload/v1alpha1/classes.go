package v1alpha1

import "slices"

// ClassesOf returns what is known of a physical cluster's classes of one kind, "<resource>.<group>"; nil if nothing is.
func (t *SyncTarget) ClassesOf(resource string) *ClassesOf {
	i := slices.IndexFunc(t.Status.Classes, func(of ClassesOf) bool { return of.Resource == resource })
	if i < 0 {
		return nil
	}
	return &t.Status.Classes[i]
}

// LacksClass says whether a physical cluster is known to have no class of that kind and name.
func (t *SyncTarget) LacksClass(resource, name string) bool {
	of := t.ClassesOf(resource)
	return of != nil && of.Omitted == 0 && !slices.ContainsFunc(of.Items, func(c Class) bool { return c.Name == name })
}
