package customresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/rest"
)

// rows are objects, of which some stay when they are deleted. They come in pages of two.
type rows struct {
	rest.Lister
	names   []string
	stay    string
	deleted []string
	// again names an object that is deleted, and created again, between each list and what follows it.
	again string
}

func (r *rows) List(_ context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	if o == nil || o.Limit == 0 {
		return nil, fmt.Errorf("listed all at once")
	}
	list := &unstructured.UnstructuredList{}
	after := slices.DeleteFunc(slices.Clone(r.names), func(n string) bool { return n <= o.Continue })
	for _, name := range after[:min(2, len(after))] {
		item := unstructured.Unstructured{}
		item.SetName(name)
		item.SetUID(types.UID("uid of " + name))
		list.Items = append(list.Items, item)
	}
	if len(after) > 2 {
		list.SetContinue(after[1])
	}
	return list, nil
}

func (r *rows) Delete(_ context.Context, name string, _ rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	uid := types.UID("uid of " + name)
	if name == r.again {
		uid = "another"
	}
	if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != uid {
		return nil, false, apierrors.NewConflict(schema.GroupResource{Resource: "widgets"}, name, fmt.Errorf("its UID is %s", uid))
	}
	r.deleted = append(r.deleted, name)
	if name != r.stay {
		r.names = slices.DeleteFunc(r.names, func(n string) bool { return n == name })
	}
	return nil, true, nil
}

// What a definition's status says decides nothing about which rows go with it.
func TestDeleteObjects(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		change  func(*apiextensionsv1.CustomResourceDefinition)
		names   []string
		stay    string
		builtin Names
		deleted []string
		want    string
	}{
		{"established", established, []string{"a", "b", "c", "d", "e"}, "", nil, []string{"a", "b", "c", "d", "e"}, "False InstanceDeletionCompleted"},
		{"one stays", established, []string{"a", "b", "c"}, "b", nil, []string{"a", "b", "c"}, "True InstanceDeletionInProgress"},
		{"never established", nil, nil, "", nil, nil, "False NeverEstablished"},
		{"not established as etcd has it, but served before that was written", nil, []string{"a"}, "", nil, []string{"a"}, "False InstanceDeletionCompleted"},
		{"another name was accepted since", func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Status.AcceptedNames.Plural = "gadgets"
		}, []string{"a"}, "", nil, []string{"a"}, "False InstanceDeletionCompleted"},
		{"a built-in resource", established, []string{"a"}, "", Names{"shop.example": {plurals: sets.New("widgets")}}, nil, "False OverlappingBuiltInResource"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d := newDefinitions(nil, tc.builtin)
			objects := &rows{names: tc.names, stay: tc.stay}
			r := newReconciler(d, nil, func(def *Definition) (deletable, func(), error) {
				if def.Status.AcceptedNames.Plural != "widgets" {
					t.Errorf("objects of %q are asked for", def.Status.AcceptedNames.Plural)
				}
				return objects, func() {}, nil
			}, func(context.Context, *Definition) (bool, error) { return len(objects.names) > 0, nil })
			defer r.stop()
			r.goingAt = func(context.Context, *Definition) (int64, error) { return 5, nil }
			got, err := r.deleteObjects(t.Context(), defined(t, &d.specs, "a", "5", tc.change))
			if err != nil {
				t.Fatal(err)
			}
			if s := fmt.Sprintf("%s %s", got.Status, got.Reason); s != tc.want {
				t.Errorf("%s, want %s", s, tc.want)
			}
			if diff := cmp.Diff(tc.deleted, objects.deleted); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	}
}

// A server that is late in the middle of the objects deletes none of those that another definition of the name has since,
// and none of a name that it saw when it was another object's.
func TestDeleteObjectsOfNoOther(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		again   string
		pages   int // after which the definition is gone; 0: it stays
		deleted []string
		err     error
	}{
		{"another object of the name", "b", 0, []string{"a", "c"}, nil},
		{"another definition before the first page", "", 1, nil, errEnded},
		{"another definition after the first page", "", 2, []string{"a", "b"}, errEnded},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d := newDefinitions(nil, nil)
			objects := &rows{names: []string{"a", "b", "c"}, again: tc.again}
			r := newReconciler(d, nil, func(*Definition) (deletable, func(), error) { return objects, func() {}, nil },
				func(context.Context, *Definition) (bool, error) { return len(objects.names) > 0, nil })
			defer r.stop()
			pages := 0
			r.goingAt = func(context.Context, *Definition) (int64, error) {
				if pages++; pages == tc.pages {
					return 0, errEnded
				}
				return 5, nil
			}
			if _, err := r.deleteObjects(t.Context(), defined(t, &d.specs, "a", "5", established)); !errors.Is(err, tc.err) {
				t.Errorf("error %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.deleted, objects.deleted); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	}
}

// Definitions are established while the objects of others take their time to go.
func TestDeletionHoldsNobodyUp(t *testing.T) {
	d := newDefinitions(nil, Names{})
	entered, release := make(chan struct{}), make(chan struct{})
	r := newReconciler(d, nil, nil, func(ctx context.Context, _ *Definition) (bool, error) {
		entered <- struct{}{}
		<-release
		return false, ctx.Err()
	})
	defer r.stop()
	d.put(defined(t, &d.specs, "a", "5", func(c *apiextensionsv1.CustomResourceDefinition) {
		now := metav1.Now()
		c.DeletionTimestamp, c.Finalizers = &now, []string{apiextensionsv1.CustomResourceCleanupFinalizer}
	}), told)
	returned := make(chan error)
	go func() {
		_, err := r.reconcile(t.Context(), key{"a", "widgets.shop.example"})
		returned <- err
	}()
	select {
	case err := <-returned:
		if err != nil || r.going.Len() != 1 {
			t.Errorf("%v, and %d definitions wait for their end, want 1", err, r.going.Len())
		}
	case <-entered:
		t.Error("objects are deleted by what establishes definitions")
		close(release)
		<-returned
	case <-time.After(20 * time.Second):
		t.Fatal("neither returned nor looked for objects in 20 s")
	}
}

// One workspace whose objects take their time to go, as its webhooks want, leaves workers for the others.
func TestEndsOfOneWorkspaceAreFew(t *testing.T) {
	d := newDefinitions(nil, Names{})
	r := newReconciler(d, nil, nil, func(context.Context, *Definition) (bool, error) {
		t.Error("one too many is ended")
		return false, nil
	})
	defer r.stop()
	d.put(defined(t, &d.specs, "slow", "5", func(c *apiextensionsv1.CustomResourceDefinition) {
		now := metav1.Now()
		c.DeletionTimestamp, c.Finalizers = &now, []string{apiextensionsv1.CustomResourceCleanupFinalizer}
	}), told)
	for range endingAtOnce {
		if !r.beginEnd("slow") {
			t.Fatal("none of the slow workspace is ended")
		}
	}
	again, err := r.end(t.Context(), key{"slow", "widgets.shop.example"})
	if again != firstLook || err != nil {
		t.Errorf("one more of the slow workspace: again after %v, %v; want %v", again, err, firstLook)
	}
	if !r.beginEnd("quick") {
		t.Error("none of another workspace is ended meanwhile")
	}
	r.endEnd("quick")
	r.endEnd("slow")
	if !r.beginEnd("slow") {
		t.Error("one has ended, and no other can begin")
	}
	for range endingAtOnce {
		r.endEnd("slow")
	}
	if len(r.ending.of) != 0 {
		t.Errorf("being ended: %v, want none", r.ending.of)
	}
}
