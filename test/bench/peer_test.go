package main

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// TestPeerBodies checks that a body whose name was replaced, as bytes, is still the object with another name.
func TestPeerBodies(t *testing.T) {
	deployment := func() (peerKind, error) { return peerDeployment(peerReplicas) }
	zero := func() (peerKind, error) { return peerDeployment(0) }
	for _, made := range []func() (peerKind, error){peerConfigMap, deployment, zero} {
		kind, err := made()
		if err != nil {
			t.Fatal(err)
		}
		for mediaType, body := range kind.bodies {
			body = bytes.Replace(body, []byte(nameTemplate), []byte(objectName(123)), 1)
			obj, err := runtime.Decode(clientgoscheme.Codecs.UniversalDeserializer(), body)
			if err != nil {
				t.Fatalf("%s in %s: %v", kind.name, mediaType, err)
			}
			if o, err := meta.Accessor(obj); err != nil || o.GetName() != "object-00000123" {
				t.Errorf("%s in %s has the name %q, %v, want object-00000123", kind.name, mediaType, o.GetName(), err)
			}
		}
	}
}
