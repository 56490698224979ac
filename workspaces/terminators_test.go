package workspaces_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/workspaces"
)

// What a workspace holds stays, once it is deleted, until each terminator of its type and of what that extends has removed
// itself. Each finds it then and not before, works in it as its owner, and is out again when it is done.
func TestTerminators(t *testing.T) {
	h := startHub(t)
	inRoot := client.In(h.ctx, workspaces.Root)
	for name, spec := range map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"base": {Terminator: true},
		"team": {Terminator: true, Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "base"}}}},
	} {
		must(t, h.clients.Objects.Create(inRoot, &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}))
	}
	path, eves := tenancyv1alpha1.TerminatingPath+"root:base", tenancyv1alpha1.TerminatingPath+"root:team"
	h.allow("olga", []string{"use"}, []string{"base", "team"})
	h.allow("pat", []string{"terminate"}, []string{"base"})
	h.allow("eve", []string{"terminate", "initialize"}, []string{"team"})
	eventually(t, "pat and eve have their verbs", func() string {
		_, err := h.by("pat", path+"/clusters/*").Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
		if err == nil {
			_, err = h.by("eve", eves+"/clusters/*").Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
		}
		return problem(err)
	})
	waiting, err := h.by("pat", path+"/clusters/*").Resource(clustersGVR).Watch(h.ctx, metav1.ListOptions{})
	must(t, err)
	defer waiting.Stop()
	in := func(who, service string, cluster logicalcluster.Name) dynamic.ResourceInterface {
		return h.by(who, service+"/clusters/"+string(cluster)).Resource(configMaps).Namespace("default")
	}
	shown := func(who, service string) (names []logicalcluster.Name) {
		t.Helper()
		listed, err := h.by(who, service+"/clusters/*").Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
		must(t, err)
		for i := range listed.Items {
			names = append(names, lcctx.NameFrom(&listed.Items[i]))
		}
		return names
	}
	refused := func(reason string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	remove := func(who, service string, cluster logicalcluster.Name, left ...string) error {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"terminators": left}})
		must(t, err)
		_, err = h.by(who, service+"/clusters/"+string(cluster)).Resource(clustersGVR).Patch(h.ctx, "cluster", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}

	both := h.asOlga("both", "root", "team", corev1alpha1.LogicalClusterPhaseReady)
	kept := h.asOlga("kept", "root", "base", corev1alpha1.LogicalClusterPhaseReady)
	h.shows("both", corev1alpha1.LogicalClusterPhaseReady, nil, []attendance.Attendant{"root:team", "root:base"})
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "account"}}}
	_, err = in("olga", "", both).Create(h.ctx, cm, metav1.CreateOptions{})
	must(t, err)
	if got := shown("pat", path); len(got) > 0 {
		t.Errorf("pat is shown %v, of which none is deleted", got)
	}
	_, err = in("pat", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who terminates what is not deleted", err)
	refused("that removes himself before", remove("pat", path, both, "root:team"))

	must(t, h.by("olga", "/clusters/root").Resource(workspacesGVR).Delete(h.ctx, "both", metav1.DeleteOptions{}))
	if e, _ := h.next(waiting); e.Type != watch.Added || lcctx.NameFrom(e.Object.(*unstructured.Unstructured)) != both {
		t.Errorf("pat is told %v", e)
	}
	waitsFor := func(names ...string) {
		t.Helper()
		eventually(t, "the Workspace says what it waits for", func() string {
			w := &tenancyv1alpha1.Workspace{}
			must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: "both"}, w))
			told := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceContentDeleted)
			if told == nil || told.Reason != "TerminatorExists" || !strings.HasSuffix(told.Message, "terminators "+strings.Join(names, ", ")) {
				return fmt.Sprintf("%+v", w.Status)
			}
			return ""
		})
	}
	waitsFor("root:base", "root:team")
	h.shows("both", corev1alpha1.LogicalClusterPhaseTerminating, nil, []attendance.Attendant{"root:team", "root:base"})
	got, err := h.by("pat", path+"/clusters/"+string(both)).Resource(clustersGVR).Get(h.ctx, "cluster", metav1.GetOptions{})
	must(t, err)
	if phase, _, _ := unstructured.NestedString(got.Object, "status", "phase"); got.GetDeletionTimestamp() == nil || phase != "Terminating" || got.GetLabels()[tenancyv1alpha1.PhaseLabel] != phase {
		t.Errorf("its LogicalCluster is not being deleted: %v", got)
	}
	if got := shown("pat", path); len(got) != 1 || got[0] != both {
		t.Errorf("pat is shown %v, want %s", got, both)
	}
	if got := shown("eve", tenancyv1alpha1.InitializingPath+"root:team"); len(got) > 0 {
		t.Errorf("of what is to be initialized eve is shown %v", got)
	}
	if _, err = in("pat", path, both).Get(h.ctx, "account", metav1.GetOptions{}); err != nil {
		t.Errorf("pat reads what is in it: %v", err)
	}
	_, err = in("pat", path, kept).List(h.ctx, metav1.ListOptions{})
	refused("one that is not deleted", err)
	_, err = in("eve", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who may terminate another type", err)
	_, err = in("olga", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who may not terminate", err)
	_, err = in("eve", tenancyv1alpha1.InitializingPath+"root:team", both).List(h.ctx, metav1.ListOptions{})
	refused("who initializes what is terminated", err)
	_, err = in("pat", "", both).List(h.ctx, metav1.ListOptions{})
	refused("who terminates comes in by the front door", err)
	refused("the owner removes it", remove("olga", "", both))
	if err := remove("pat", path, both); !apierrors.IsInvalid(err) {
		t.Errorf("pat removes eve's too: %v", err)
	}

	must(t, in("pat", path, both).Delete(h.ctx, "account", metav1.DeleteOptions{}))
	inside, err := in("pat", path, both).Watch(h.ctx, metav1.ListOptions{})
	must(t, err)
	defer inside.Stop()
	must(t, remove("pat", path, both, "root:team"))
	for open := true; open; _, open = h.next(inside) {
		// what is shown before it is noticed; then the watch ends
	}
	for {
		if e, open := h.next(waiting); !open {
			t.Fatal("the watch of what waits ended")
		} else if e.Type == watch.Deleted {
			break
		}
	}
	_, err = in("pat", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who is done", err)
	waitsFor("root:team")
	h.shows("both", corev1alpha1.LogicalClusterPhaseTerminating, nil, []attendance.Attendant{"root:team"})
	if _, err := in("eve", eves, both).Get(h.ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		t.Errorf("what is in it goes before the last terminator is done: %v", err)
	}
	must(t, remove("eve", eves, both))
	h.gone(workspaces.Root, "both")
	h.ready(workspaces.Root, "kept")

	// Administrators of the server end what waits for a terminator that never comes.
	h.remove(workspaces.Root, "kept")
	eventually(t, "the other is terminating", func() string {
		if !h.directory.Terminating(kept) {
			return "not yet"
		}
		return ""
	})
	_, err = h.clients.Dynamic.Resource(clustersGVR).Patch(client.In(h.ctx, kept), "cluster", types.MergePatchType, []byte(`{"status": {"terminators": null}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	h.gone(workspaces.Root, "kept")
}
