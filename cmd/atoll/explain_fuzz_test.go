package main

import (
	"strings"
	"testing"

	"atoll.dev/atoll/internal/kinds"
)

// FuzzParsePlaced: what is explained is of a kind that has a Placement and has the name behind the first slash, whole; and each way
// to write a kind that is taken leads to the one that its full name leads to.
func FuzzParsePlaced(f *testing.F) {
	for _, arg := range []string{
		"deploy/web", "Deployments/web", "deployment.apps/web", "deployments.v1.apps/web", "jobs.v2.batch/web", "deployment.batch/web", "web", "secret/web", "deploy/", "/web", "deploy/web/x", "deploy/../web",
		"svc/web", "DEPLOY/web", "deployments.v1./web", "deployments./web", "deployments..apps/web", ".deployments/web", "deployments.v1.apps.example/web", "deploy /web", "ſvc/web", "deploy/web\x00", "cronjob/web", "pods/web",
	} {
		f.Add(arg)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		kind, name, err := parsePlaced(arg)
		typed, rest, _ := strings.Cut(arg, "/")
		if err != nil {
			if name != "" || kind.GVK.Kind != "" {
				t.Errorf("%q is refused, and is %s %q", arg, kind.GVK.Kind, name)
			}
			for _, k := range kinds.All {
				if k.IsPlaced() && rest != "" && (typed == k.GVR.Resource || typed == k.GVR.Resource+"."+k.GVR.Group) {
					t.Errorf("%q: %v", arg, err)
				}
			}
			return
		}
		if !kind.IsPlaced() || name == "" || name != rest {
			t.Errorf("%q is %s %q", arg, kind.GVK.Kind, name)
		}
		full := kind.GVR.Resource + "." + kind.GVR.Version + "." + kind.GVR.Group + "/" + name
		if again, same, err := parsePlaced(full); err != nil || again.GVK != kind.GVK || same != name {
			t.Errorf("%q is %s %q, and %q is %s %q, %v", arg, kind.GVK.Kind, name, full, again.GVK.Kind, same, err)
		}
	})
}
