// Package order has what functions that compare, for slices.SortFunc, are made of beside package cmp.
package order

// First orders true before false.
func First(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
