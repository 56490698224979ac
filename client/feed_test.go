package client

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFed: who is fed is told of each object, and of a list when all in it have been told.
func TestFed(t *testing.T) {
	var told []string
	f := fed[*metav1.PartialObjectMetadata]{func(obj *metav1.PartialObjectMetadata, gone bool) {
		if gone {
			obj.Name += " is gone"
		}
		told = append(told, obj.Name)
	}, func() { told = append(told, "all") }}
	object := func(name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, err := range []error{
		f.Replace([]any{object("a"), object("b")}, ""), f.Update(object("b")), f.Delete(object("b")), f.Add(object("c")), f.Replace(nil, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a", "b", "all", "b", "b is gone", "c", "all"}; !slices.Equal(told, want) {
		t.Errorf("told is %q, want %q", told, want)
	}
	if err := f.Replace([]any{"no object"}, ""); err == nil {
		t.Error("text is taken for an object")
	}
	f.listed = nil
	if err := f.Replace(nil, ""); err != nil {
		t.Error(err)
	}
}
