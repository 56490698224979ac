package server

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

func storageClass(name, provisioner string, byDefault bool) workloadv1alpha1.Class {
	return workloadv1alpha1.Class{Name: name, Provisioner: provisioner, Default: byDefault, ReclaimPolicy: "Delete", VolumeBindingMode: "Immediate"}
}

func priorityClass(name string, value int32) workloadv1alpha1.Class {
	return workloadv1alpha1.Class{Name: name, Value: value, PreemptionPolicy: "PreemptLowerPriority"}
}

const (
	storageClasses  = "storageclasses.storage.k8s.io"
	priorityClasses = "priorityclasses.scheduling.k8s.io"
)

// has makes a physical cluster have these classes, of one kind, and no others of it.
func (g *ground) has(t *testing.T, in logicalcluster.Name, target *workloadv1alpha1.SyncTarget, resource string, items ...workloadv1alpha1.Class) {
	t.Helper()
	g.status(t, in, target, func(s *workloadv1alpha1.SyncTargetStatus) {
		s.Classes = slices.DeleteFunc(s.Classes, func(of workloadv1alpha1.ClassesOf) bool { return of.Resource == resource })
		s.Classes = append(s.Classes, workloadv1alpha1.ClassesOf{Resource: resource, Items: items})
	})
}

// storage are a workspace's StorageClasses: their names, provisioners, and annotations about clusters; "*" is a default.
func (g *ground) storage(t *testing.T, in logicalcluster.Name) string {
	t.Helper()
	list, err := g.in(t, in).StorageV1().StorageClasses().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var out []string
	for _, c := range list.Items {
		out = append(out, shownStorage(&c))
	}
	return strings.Join(out, " ")
}

func shownStorage(c *storagev1.StorageClass) string {
	text := c.Name + "=" + c.Provisioner
	if in := c.Annotations[workloadv1alpha1.ClassClustersAnnotation]; in != "" {
		text += "@" + in
	}
	if in := c.Annotations[workloadv1alpha1.ClassDiffersAnnotation]; in != "" {
		text += "!" + in
	}
	if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
		text += "*"
	}
	return text
}

// TestClassesAreWhatAWorkspaceMayUse: those of its physical clusters, each name once, behind its own; and nothing of others.
func TestClassesAreWhatAWorkspaceMayUse(t *testing.T) {
	g := newGround(t)
	expect := func(reason string, in logicalcluster.Name, want string) {
		t.Helper()
		if got := g.storage(t, in); got != want {
			t.Errorf("%s: %s has %q, want %q", reason, in, got, want)
		}
	}
	expect("there are no clusters", shop, "")
	east, west := g.target(t, "root", "east", nil), g.target(t, "root", "west", nil)
	own := g.target(t, shop, "own", nil)
	g.has(t, "root", east, storageClasses, storageClass("fast", "east.example", true), storageClass("slow", "all.example", false))
	expect("a default is one in every cluster", shop, "fast=east.example@east slow=all.example@east")
	g.has(t, "root", west, storageClasses, storageClass("fast", "west.example", true), storageClass("slow", "all.example", false))
	expect("what differs is marked", bank, "fast=east.example@east,west!west* slow=all.example@east,west")
	g.has(t, shop, own, storageClasses, storageClass("mine", "own.example", false))
	expect("what its own cluster has", shop, "fast=east.example@east,west!west mine=own.example@own slow=all.example@east,west")
	expect("another does not see it", bank, "fast=east.example@east,west!west* slow=all.example@east,west")

	g.allow(t, bank, "narrow", "west")
	expect("a policy leaves one", bank, "fast=west.example@west* slow=all.example@west")
	if _, err := g.in(t, bank).StorageV1().StorageClasses().Get(t.Context(), "mine", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("bank reads a class of a cluster that it may not use: %v", err)
	}
	g.update(t, "root", west, func() { west.Spec.DedicatedTo = "root:shop" })
	expect("and that is somebody else's", bank, "")

	// Its own class takes the place of one that is shown, and its default that of others.
	classes := g.in(t, shop).StorageV1().StorageClasses()
	made, err := classes.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "shop.example",
	}, metav1.CreateOptions{})
	must(t, err)
	expect("its own wins", shop, "fast=shop.example* mine=own.example@own slow=all.example@east,west")
	made.Labels = map[string]string{"a": "b"}
	_, err = classes.Update(t.Context(), made, metav1.UpdateOptions{})
	must(t, err)
	must(t, classes.Delete(t.Context(), "fast", metav1.DeleteOptions{}))
	expect("until it is gone", shop, "fast=east.example@east,west!west mine=own.example@own slow=all.example@east,west")

	// What a SyncTarget's owner writes into its status is shown as far as it is a class.
	g.has(t, shop, own, storageClasses, storageClass("No Name", "p", false), storageClass("bad", "", false), storageClass("good", "p", false))
	expect("no class", shop, "fast=east.example@east,west!west good=p@own slow=all.example@east,west")
}

// TestShownClassesAreReadOnly: whatever is asked, dry or not, and it is said what to do instead.
func TestShownClassesAreReadOnly(t *testing.T) {
	g := newGround(t)
	east := g.target(t, "root", "east", nil)
	g.has(t, "root", east, storageClasses, storageClass("fast", "east.example", false))
	classes := g.in(t, shop).StorageV1().StorageClasses()
	class, err := classes.Get(t.Context(), "fast", metav1.GetOptions{})
	must(t, err)
	class.AllowVolumeExpansion = ptr.To(true)
	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	apply := []byte(`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"fast"},"provisioner":"mine"}`)
	for _, dry := range [][]string{{metav1.DryRunAll}, nil} {
		for verb, do := range map[string]func() error{
			"update": func() error {
				_, err := classes.Update(t.Context(), class, metav1.UpdateOptions{DryRun: dry})
				return err
			},
			"patch": func() error {
				_, err := classes.Patch(t.Context(), "fast", types.MergePatchType, patch, metav1.PatchOptions{DryRun: dry})
				return err
			},
			"apply": func() error {
				_, err := classes.Patch(t.Context(), "fast", types.ApplyPatchType, apply, metav1.PatchOptions{DryRun: dry, FieldManager: "test", Force: ptr.To(true)})
				return err
			},
			"delete": func() error { return classes.Delete(t.Context(), "fast", metav1.DeleteOptions{DryRun: dry}) },
		} {
			err := do()
			if !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), `create a StorageClass of that name`) {
				t.Errorf("%s, dry %v: %v", verb, dry, err)
			}
		}
		_, err := classes.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "mine"}, metav1.CreateOptions{DryRun: dry})
		must(t, err)
	}
	must(t, classes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	if got := g.storage(t, shop); got != "fast=east.example@east" {
		t.Errorf("its own is deleted, and no other: %q", got)
	}
}

// TestClassesInAdmission: what is shown is there for what names it, and is taken where it is the default.
func TestClassesInAdmission(t *testing.T) {
	g := newGround(t)
	east := g.target(t, "root", "east", nil)
	g.has(t, "root", east, storageClasses, storageClass("fast", "east.example", true))
	g.has(t, "root", east, priorityClasses, priorityClass("high", 1000))
	in := g.in(t, shop)
	g.place(t, shop).namespace(t, "ns", nil, "")

	claim := func(name string) string {
		t.Helper()
		made, err := in.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse("1Gi")}}},
		}, metav1.CreateOptions{})
		must(t, err)
		return ptr.Deref(made.Spec.StorageClassName, "none")
	}
	if got := claim("a"); got != "fast" {
		t.Errorf("a claim that names none gets %q", got)
	}
	west := g.target(t, "root", "west", nil)
	if got := claim("b"); got != "none" {
		t.Errorf("west may have another default, and a claim gets %q", got)
	}
	must(t, g.objects.Delete(client.In(t.Context(), "root"), west))

	pod := func(class string) (*corev1.Pod, error) {
		return in.CoreV1().Pods("ns").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p"},
			Spec:       corev1.PodSpec{PriorityClassName: class, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
	}
	made, err := pod("high")
	must(t, err)
	if ptr.Deref(made.Spec.Priority, 0) != 1000 {
		t.Errorf("a pod of class high has the priority %v", made.Spec.Priority)
	}
	if _, err := pod("none"); err == nil {
		t.Error("a class that is nowhere is admitted")
	}
	// A workspace may have a default of its own: none that is shown is one.
	_, err = in.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 7, GlobalDefault: true}, metav1.CreateOptions{})
	must(t, err)
	if made, err = pod(""); err != nil || made.Spec.PriorityClassName != "usual" {
		t.Errorf("by default a pod has the class %v, %v", made, err)
	}
	_, err = in.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/c"}}, metav1.CreateOptions{})
	must(t, err)
}

// TestClassesAreWatched: of clusters and of rows, in one order, which a client can go on from; rows with the revision they are stored with.
func TestClassesAreWatched(t *testing.T) {
	g := newGround(t)
	east, west := g.target(t, "root", "east", nil), g.target(t, "root", "west", nil)
	g.has(t, "root", east, storageClasses, storageClass("fast", "one", false))
	classes := g.in(t, shop).StorageV1().StorageClasses()
	list, err := classes.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	w, err := classes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	must(t, err)
	defer w.Stop()
	var last *storagev1.StorageClass
	told := func(reason string, want ...string) {
		t.Helper()
		for _, text := range want {
			select {
			case event, ok := <-w.ResultChan():
				if !ok || event.Type == watch.Error {
					t.Fatalf("%s: the watch ended: %v", reason, event.Object)
				}
				last = event.Object.(*storagev1.StorageClass)
				if got := string(event.Type) + " " + shownStorage(last); got != text {
					t.Fatalf("%s: told %q, want %q", reason, got, text)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: not told %q", reason, text)
			}
		}
	}
	g.has(t, "root", east, storageClasses, storageClass("fast", "two", false))
	told("changed below", "MODIFIED fast=two@east")
	g.has(t, "root", west, storageClasses, storageClass("fast", "two", false))
	told("another cluster has it: that is another class", "DELETED fast=two@east", "ADDED fast=two@east,west")
	g.target(t, bank, "banks", nil)
	made, err := classes.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "own"}, metav1.CreateOptions{})
	must(t, err)
	told("its own takes its place", "DELETED fast=two@east,west", "ADDED fast=own")
	if last.ResourceVersion != made.ResourceVersion {
		t.Errorf("who writes a row next names revision %s, and is refused: it is stored with %s", last.ResourceVersion, made.ResourceVersion)
	}
	made.Labels = map[string]string{"a": "b"}
	_, err = classes.Update(t.Context(), made, metav1.UpdateOptions{})
	must(t, err)
	told("a row is changed", "MODIFIED fast=own")
	if _, err = g.in(t, bank).StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Provisioner: "p"}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, classes.Delete(t.Context(), "fast", metav1.DeleteOptions{}))
	told("it is gone, and nothing of bank's was told", "DELETED fast=own", "ADDED fast=two@east,west")

	// Who goes on from the last event misses nothing, and who goes on from the first begins anew.
	again, err := classes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last.ResourceVersion})
	must(t, err)
	w.Stop()
	w = again
	g.has(t, "root", east, storageClasses)
	told("gone in one", "DELETED fast=two@east,west", "ADDED fast=two@west")
	g.has(t, "root", west, storageClasses)
	told("gone in both", "DELETED fast=two@west")
	expired, err := classes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err == nil {
		event := <-expired.ResultChan()
		expired.Stop()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && apierrors.ReasonForError(err) != metav1.StatusReasonGone {
		t.Errorf("from before all that: %v, want %d", err, http.StatusGone)
	}
}
