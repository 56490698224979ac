package storage

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// TestMetadataIsInOneField: fields of a custom resource may be called almost like it, and be of any type.
func TestMetadataIsInOneField(t *testing.T) {
	b := serve(t, prefixOf(t), nil)
	for name, text := range map[string]string{
		"text":    `{"apiVersion":"shop.example/v1","kind":"Widget","Metadata":"x","metadata":{"name":"a","namespace":"shop"},"METADATA":7}`,
		"another": `{"apiVersion":"shop.example/v1","kind":"Widget","metadata":{"name":"a","namespace":"shop"},"Metadata":{"name":"b","ownerReferences":[{"uid":"u"}],"deletionTimestamp":"2026-01-01T00:00:00Z"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			check := func(by string, m metav1.Object, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", by, err)
				}
				if m.GetName() != "a" || len(m.GetOwnerReferences()) > 0 || m.GetDeletionTimestamp() != nil {
					t.Errorf("%s: %+v", by, m)
				}
			}
			obj, _, err := metadataCodec{}.Decode([]byte(text), nil, &metav1.PartialObjectMetadata{})
			m, _ := obj.(*metav1.PartialObjectMetadata)
			check("who reads its metadata", m, err)
			ready, err := b.readyCustom(t.Context(), "aa", "/registry/shop.example/widgets/aa/shop/a", PlainRow{Prefix: "/shop.example/widgets", Key: "shop/a", Value: []byte(text), Custom: true})
			if err != nil {
				t.Fatalf("who imports it: %v", err)
			}
			check("who imports it", &ready.Meta, nil)
		})
	}
}

// TestMetadataIsForgotten: of a store of metadata that nobody has any more nothing is left.
func TestMetadataIsForgotten(t *testing.T) {
	b := serve(t, prefixOf(t), nil)
	goroutines := runtime.NumGoroutine()
	const n = 100
	freed := make(chan struct{}, n)
	for i := range n {
		r, err := b.Metadata(schema.GroupResource{Group: "shop.example", Resource: fmt.Sprint("widgets", i)})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Storage.GetList(everywhere(), r.Key("", ""), storage.ListOptions{Recursive: true, Predicate: storage.Everything}, r.NewList()); err != nil {
			t.Fatal(err)
		}
		runtime.AddCleanup(r, func(struct{}) { freed <- struct{}{} }, struct{}{})
	}
	if now := runtime.NumGoroutine(); now >= goroutines+n {
		t.Errorf("%d goroutines, before %d stores were opened %d", now, n, goroutines)
	}
	for i := range n {
		runtime.GC()
		select {
		case <-freed:
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d stores are kept by somebody", n-i, n)
		}
	}
}
