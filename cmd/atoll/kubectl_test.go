package main

import "testing"

// TestKubectlAgent: the server names who wrote a field by what comes before the slash, as "kubectl" of kubectl.
func TestKubectlAgent(t *testing.T) {
	const own = "atoll/v0.1.0 (linux/amd64) kubernetes/1a2b3c4"
	if got, want := kubectlAgent(own), "kubectl/v0.1.0 (linux/amd64) kubernetes/1a2b3c4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
