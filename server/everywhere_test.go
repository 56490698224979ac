package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
)

// What is read of all logical clusters without a request is what requests return: lists, and events of every type.
func TestEverywhere(t *testing.T) {
	s := startServer(t, nil)
	clients, err := client.New(s.LoopbackConfig())
	if err != nil {
		t.Fatal(err)
	}
	requests, direct := clients.Objects, s.Everywhere(clients.Objects)
	metadata := func(kind string) *metav1.PartialObjectMetadataList {
		return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind + "List"}}
	}
	for name, tc := range map[string]struct {
		list   func() ctrlclient.ObjectList
		object func(name string) ctrlclient.Object
		opts   []ctrlclient.ListOption
		reason string
	}{
		"Ours": {
			list: func() ctrlclient.ObjectList { return &tenancyv1alpha1.WorkspaceList{} },
			object: func(name string) ctrlclient.Object {
				return &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			},
			reason: "it is stored in the type that clients have",
		},
		"Placements": {
			list: func() ctrlclient.ObjectList { return &placementv1alpha1.PlacementList{} },
			object: func(name string) ctrlclient.Object {
				return &placementv1alpha1.Placement{
					ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: placementv1alpha1.PlacementSpec{Namespace: name},
				}
			},
		},
		"BuiltIn": {
			list: func() ctrlclient.ObjectList { return &corev1.NamespaceList{} },
			object: func(name string) ctrlclient.Object {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "a"}}}
			},
			reason: "it is converted",
		},
		"Metadata": {
			list: func() ctrlclient.ObjectList { return metadata("ServiceAccount") },
			object: func(name string) ctrlclient.Object {
				return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			},
			opts: []ctrlclient.ListOption{&ctrlclient.ListOptions{Raw: &metav1.ListOptions{FieldSelector: "metadata.name!=default"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			names := []string{numbered(name, 1), numbered(name, 2)}
			for _, cluster := range []logicalcluster.Name{shop, bank} {
				for _, n := range append(names, "default") {
					obj := tc.object(n)
					if ns := obj.GetNamespace(); ns != "" {
						err := requests.Create(client.In(t.Context(), cluster), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
						if ctrlclient.IgnoreAlreadyExists(err) != nil {
							t.Fatal(err)
						}
					}
					if err := requests.Create(client.In(t.Context(), cluster), obj); ctrlclient.IgnoreAlreadyExists(err) != nil {
						t.Fatal(err)
					}
				}
			}
			want, got := tc.list(), tc.list()
			for list, c := range map[ctrlclient.ObjectList]ctrlclient.WithWatch{want: requests, got: direct} {
				if err := c.List(client.Everywhere(t.Context()), list, tc.opts...); err != nil {
					t.Fatal(err)
				}
			}
			if n := meta.LenList(got); n < 4 {
				t.Errorf("a list has %d objects, want those of two logical clusters at least", n)
			}
			if diff := cmp.Diff(untyped(t, want), untyped(t, got)); diff != "" {
				t.Errorf("a list differs (-by request +without): %s\n%s", tc.reason, diff)
			}

			watches := map[string]watch.Interface{}
			for by, c := range map[string]ctrlclient.WithWatch{"request": requests, "": direct} {
				opts := &ctrlclient.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: got.GetResourceVersion(), AllowWatchBookmarks: true}}
				opts.ApplyOptions(nil)
				if len(tc.opts) > 0 {
					opts.Raw.FieldSelector = tc.opts[0].(*ctrlclient.ListOptions).Raw.FieldSelector
				}
				w, err := c.Watch(client.Everywhere(t.Context()), tc.list(), opts)
				if err != nil {
					t.Fatal(err)
				}
				defer w.Stop()
				watches[by] = w
			}
			obj := tc.object(numbered(name, 3))
			ctx := client.In(t.Context(), shop)
			for _, step := range []func() error{
				func() error { return requests.Create(ctx, obj) },
				func() error {
					obj.SetLabels(map[string]string{"changed": "yes"})
					return requests.Update(ctx, obj)
				},
				func() error { return requests.Delete(ctx, obj) },
			} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
				want, got := nextEvent(t, watches["request"]), nextEvent(t, watches[""])
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("an event differs (-by request +without):\n%s", diff)
				}
			}
		})
	}

	t.Run("BadSelector", func(t *testing.T) {
		_, err := direct.Watch(client.Everywhere(t.Context()), &corev1.NamespaceList{}, &ctrlclient.ListOptions{Raw: &metav1.ListOptions{FieldSelector: "in=valid=yes"}})
		if err == nil {
			t.Error("a selector that does not parse is taken")
		}
	})
}

func numbered(of string, n int) string { return fmt.Sprintf("%c%d", of[0]|0x20, n) }

// nextEvent is the next event that is no bookmark.
func nextEvent(t *testing.T, w watch.Interface) map[string]any {
	t.Helper()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			if event.Type != watch.Bookmark {
				return map[string]any{"type": event.Type, "object": withoutType(t, event.Object)}
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no event for 20 s")
		}
	}
}

// untyped is a list, without what says of which type its items are: clients tell it, if at all, by their Go type.
func untyped(t *testing.T, list ctrlclient.ObjectList) []map[string]any {
	t.Helper()
	var items []map[string]any
	if err := meta.EachListItem(list, func(obj runtime.Object) error {
		items = append(items, withoutType(t, obj))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return items
}

func withoutType(t *testing.T, obj runtime.Object) map[string]any {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	delete(m, "kind")
	delete(m, "apiVersion")
	return m
}
