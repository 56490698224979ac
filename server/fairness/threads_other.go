//go:build !linux

package fairness

// UseShortSlices does nothing: only Linux can be asked.
func UseShortSlices() {}
