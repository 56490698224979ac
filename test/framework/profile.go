package framework

import "github.com/google/pprof/profile"

// Calls returns the names of the functions in the stack of a profile's sample, the innermost first.
func Calls(sample *profile.Sample) (functions []string) {
	for _, location := range sample.Location {
		for _, line := range location.Line {
			if line.Function != nil {
				functions = append(functions, line.Function.Name)
			}
		}
	}
	return functions
}
