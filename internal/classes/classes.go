package classes

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// Most is how many classes of a kind are told of a physical cluster; those beyond, by name, are counted.
	Most = 64
	// longest is how long a text of a class may be, in bytes: as a name of Kubernetes. A description is cut.
	longest = 253
	// mostOverhead is how many resources an overhead may name.
	mostOverhead = 8

	defaultStorage = "storageclass.kubernetes.io/is-default-class"
	defaultIngress = "ingressclass.kubernetes.io/is-default-class"
)

// Kind is a kind of class.
type Kind struct {
	GVR  schema.GroupVersionResource
	Name string
	// Field is what names one, and Without what becomes of an object where the class that it names is missing.
	Field, Without string
	// DefaultAnnotation marks the class that is taken where none is named; empty for kinds that workspaces are shown no default of.
	DefaultAnnotation string

	read func(*unstructured.Unstructured) workloadv1alpha1.Class
	show func(workloadv1alpha1.Class) ctrlclient.Object
	// own says of a class that every cluster has it, by itself.
	own func(name string) bool
}

// All are the kinds.
var All = []Kind{
	{
		GVR: storagev1.SchemeGroupVersion.WithResource("storageclasses"), Name: "StorageClass",
		Field: "storageClassName", Without: "claims of it wait there", DefaultAnnotation: defaultStorage,
		read: func(o *unstructured.Unstructured) workloadv1alpha1.Class {
			return workloadv1alpha1.Class{
				Default: o.GetAnnotations()[defaultStorage] == "true", Provisioner: text(o, "provisioner"),
				ReclaimPolicy:     cmp.Or(text(o, "reclaimPolicy"), string(corev1.PersistentVolumeReclaimDelete)),
				VolumeBindingMode: cmp.Or(text(o, "volumeBindingMode"), string(storagev1.VolumeBindingImmediate)), AllowVolumeExpansion: flag(o, "allowVolumeExpansion"),
			}
		},
		show: func(c workloadv1alpha1.Class) ctrlclient.Object {
			return &storagev1.StorageClass{
				Provisioner: c.Provisioner, ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimPolicy(c.ReclaimPolicy)),
				VolumeBindingMode: ptr.To(storagev1.VolumeBindingMode(c.VolumeBindingMode)), AllowVolumeExpansion: ptr.To(c.AllowVolumeExpansion),
			}
		},
	},
	{
		GVR: networkingv1.SchemeGroupVersion.WithResource("ingressclasses"), Name: "IngressClass",
		Field: "ingressClassName", Without: "nobody serves it there", DefaultAnnotation: defaultIngress,
		read: func(o *unstructured.Unstructured) workloadv1alpha1.Class {
			return workloadv1alpha1.Class{Default: o.GetAnnotations()[defaultIngress] == "true", Controller: text(o, "spec", "controller")}
		},
		show: func(c workloadv1alpha1.Class) ctrlclient.Object {
			return &networkingv1.IngressClass{Spec: networkingv1.IngressClassSpec{Controller: c.Controller}}
		},
	},
	{
		GVR: schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), Name: "PriorityClass",
		Field: "priorityClassName", Without: "pods are refused there",
		read: func(o *unstructured.Unstructured) workloadv1alpha1.Class {
			value, _, _ := unstructured.NestedInt64(o.Object, "value")
			return workloadv1alpha1.Class{
				Default: flag(o, "globalDefault"), Value: int32(min(max(value, -maxPriority), maxPriority)), //nolint:gosec // bounded
				PreemptionPolicy: cmp.Or(text(o, "preemptionPolicy"), string(corev1.PreemptLowerPriority)), Description: cut(text(o, "description")),
			}
		},
		show: func(c workloadv1alpha1.Class) ctrlclient.Object {
			// No default: it would keep a workspace from having its own, and a pod gets the default of the cluster that it runs in.
			return &schedulingv1.PriorityClass{Value: c.Value, Description: c.Description, PreemptionPolicy: ptr.To(corev1.PreemptionPolicy(c.PreemptionPolicy))}
		},
		own: IsSystem,
	},
	{
		GVR: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), Name: "RuntimeClass",
		Field: "runtimeClassName", Without: "pods are refused there",
		read: func(o *unstructured.Unstructured) workloadv1alpha1.Class {
			return workloadv1alpha1.Class{Handler: text(o, "handler"), Overhead: overhead(o)}
		},
		show: func(c workloadv1alpha1.Class) ctrlclient.Object {
			class := &nodev1.RuntimeClass{Handler: c.Handler}
			if len(c.Overhead) > 0 {
				class.Overhead = &nodev1.Overhead{PodFixed: c.Overhead.DeepCopy()}
			}
			return class
		},
	},
}

// maxPriority is the greatest value of a PriorityClass that is not the system's.
const maxPriority = 1_000_000_000

// IsSystem says whether a PriorityClass is one that every cluster has by itself.
func IsSystem(name string) bool { return strings.HasPrefix(name, "system-") }

// ByResource returns the kind of a resource.
func ByResource(resource schema.GroupResource) (Kind, bool) {
	i := slices.IndexFunc(All, func(k Kind) bool { return k.GVR.GroupResource() == resource })
	if i < 0 {
		return Kind{}, false
	}
	return All[i], true
}

// Resource is the kind's in a SyncTarget's status, "<resource>.<group>".
func (k Kind) Resource() string { return k.GVR.GroupResource().String() }

// Read returns what is told of a class of a physical cluster, which may hold anything.
func (k Kind) Read(o *unstructured.Unstructured) workloadv1alpha1.Class {
	c := k.read(o)
	c.Name = o.GetName()
	return c
}

// Show returns a class as a workspace sees it, without metadata but its name.
func (k Kind) Show(c workloadv1alpha1.Class) ctrlclient.Object {
	shown := k.show(c)
	shown.SetName(c.Name)
	return shown
}

// Thin keeps of a class what Read reads.
func (k Kind) Thin(o *unstructured.Unstructured) *unstructured.Unstructured {
	thin := &unstructured.Unstructured{Object: map[string]any{}}
	for _, field := range []string{"apiVersion", "kind", "provisioner", "reclaimPolicy", "volumeBindingMode", "allowVolumeExpansion", "globalDefault", "value",
		"preemptionPolicy", "description", "handler", "overhead"} {
		if value, ok := o.Object[field]; ok {
			thin.Object[field] = value
		}
	}
	if controller := text(o, "spec", "controller"); controller != "" {
		thin.Object["spec"] = map[string]any{"controller": controller}
	}
	thin.SetName(o.GetName())
	thin.SetUID(o.GetUID())
	thin.SetResourceVersion(o.GetResourceVersion())
	if k.DefaultAnnotation != "" && o.GetAnnotations()[k.DefaultAnnotation] == "true" {
		thin.SetAnnotations(map[string]string{k.DefaultAnnotation: "true"})
	}
	return thin
}

// Of returns what is told of the classes of one kind, given in any order.
func (k Kind) Of(items []workloadv1alpha1.Class) workloadv1alpha1.ClassesOf {
	return k.checked(workloadv1alpha1.ClassesOf{Items: items})
}

// checked returns those that are valid, sorted by name, Most of them at most; the others are counted.
func (k Kind) checked(of workloadv1alpha1.ClassesOf) workloadv1alpha1.ClassesOf {
	out := workloadv1alpha1.ClassesOf{Resource: k.Resource(), Omitted: max(of.Omitted, 0)}
	seen := map[string]bool{}
	for _, c := range slices.SortedFunc(slices.Values(of.Items), func(a, b workloadv1alpha1.Class) int { return cmp.Compare(a.Name, b.Name) }) {
		switch {
		case seen[c.Name], k.own != nil && k.own(c.Name):
		case len(out.Items) == Most || !k.valid(c):
			out.Omitted = min(out.Omitted, omitted) + 1
		default:
			seen[c.Name] = true
			out.Items = append(out.Items, c)
		}
	}
	return out
}

// omitted is more than anybody counts.
const omitted = 1_000_000

// Checked returns what holds, of what a SyncTarget's status says of classes, by the rules of this package.
func Checked(all []workloadv1alpha1.ClassesOf) (checked []workloadv1alpha1.ClassesOf) {
	for _, k := range All {
		if i := slices.IndexFunc(all, func(of workloadv1alpha1.ClassesOf) bool { return of.Resource == k.Resource() }); i >= 0 {
			checked = append(checked, k.checked(*all[i].DeepCopy()))
		}
	}
	return checked
}

// valid says whether a class of that kind could be stored, with no fields but its own.
func (k Kind) valid(c workloadv1alpha1.Class) bool {
	if len(validation.NameIsDNSSubdomain(c.Name, false)) > 0 || len(c.Overhead) > mostOverhead {
		return false
	}
	for _, text := range []string{c.Description, c.Provisioner, c.Controller, c.Handler} {
		if len(text) > longest || !utf8.ValidString(text) {
			return false
		}
	}
	for name, quantity := range c.Overhead {
		if len(name) > longest || len(utilvalidation.IsQualifiedName(string(name))) > 0 || quantity.Sign() < 0 {
			return false
		}
	}
	bare := workloadv1alpha1.Class{Name: c.Name, Default: c.Default}
	switch k.Name {
	case "StorageClass":
		bare.Provisioner, bare.ReclaimPolicy, bare.VolumeBindingMode, bare.AllowVolumeExpansion = c.Provisioner, c.ReclaimPolicy, c.VolumeBindingMode, c.AllowVolumeExpansion
		if c.Provisioner == "" ||
			!slices.Contains([]string{string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRetain), string(corev1.PersistentVolumeReclaimRecycle)}, c.ReclaimPolicy) ||
			!slices.Contains([]string{string(storagev1.VolumeBindingImmediate), string(storagev1.VolumeBindingWaitForFirstConsumer)}, c.VolumeBindingMode) {
			return false
		}
	case "IngressClass":
		bare.Controller = c.Controller
	case "PriorityClass":
		bare.Value, bare.PreemptionPolicy, bare.Description = c.Value, c.PreemptionPolicy, c.Description
		if c.Value > maxPriority || !slices.Contains([]string{string(corev1.PreemptLowerPriority), string(corev1.PreemptNever)}, c.PreemptionPolicy) {
			return false
		}
	case "RuntimeClass":
		bare.Handler, bare.Overhead = c.Handler, c.Overhead
		if c.Handler == "" {
			return false
		}
	}
	return Same(bare, c)
}

// Same says whether two classes say the same.
func Same(a, b workloadv1alpha1.Class) bool { return apiequality.Semantic.DeepEqual(a, b) }

func text(o *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(o.Object, path...)
	return value
}

func flag(o *unstructured.Unstructured, field string) bool {
	value, _, _ := unstructured.NestedBool(o.Object, field)
	return value
}

// overhead reads one that is none as one that is not valid.
func overhead(o *unstructured.Unstructured) corev1.ResourceList {
	fixed, _, _ := unstructured.NestedStringMap(o.Object, "overhead", "podFixed")
	if len(fixed) == 0 {
		return nil
	}
	list := corev1.ResourceList{}
	for name, value := range fixed {
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			quantity = resource.MustParse("-1")
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list
}

// cut bounds a text for people, between letters.
func cut(s string) string {
	if len(s) <= longest {
		return s
	}
	s = s[:longest-3]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}
