package main

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
)

func TestInWords(t *testing.T) {
	path := func(name logicalcluster.Name) string {
		if name == "2abcdefghij01234" {
			return "root:shop"
		}
		return name.String()
	}
	for message, want := range map[string]string{
		"Waits until 2 placements have left it: 2abcdefghij01234|default, root|front.deployments.web.": "Waits until 2 placements have left it: root:shop default, root front.deployments.web.",
		"Waits until what it runs is gone there: deployment shop-1a2b/web.":                            "Waits until what it runs is gone there: deployment shop-1a2b/web.",
	} {
		if got := inWords(message, path); got != want {
			t.Errorf("%q is %q, want %q", message, got, want)
		}
	}
}
