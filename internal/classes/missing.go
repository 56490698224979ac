package classes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// Reference is a class that an object names.
type Reference struct {
	Kind Kind
	Name string
}

// MayName says whether objects of a kind may name classes.
func MayName(k kinds.Kind) bool {
	return k.MakesPods() || slices.Contains([]string{"Ingress", "PersistentVolumeClaim"}, k.GVK.Kind)
}

// Named returns the classes that an object names and that go down with it, each once. System classes of priority do not.
func Named(obj ctrlclient.Object) (named []Reference) {
	add := func(kind, name string) {
		i := slices.IndexFunc(All, func(k Kind) bool { return k.Name == kind })
		if name != "" && !slices.ContainsFunc(named, func(r Reference) bool { return r.Kind.Name == kind && r.Name == name }) {
			named = append(named, Reference{All[i], name})
		}
	}
	claim := func(spec corev1.PersistentVolumeClaimSpec) {
		if spec.StorageClassName != nil {
			add("StorageClass", *spec.StorageClassName)
		}
	}
	switch o := obj.(type) {
	case *networkingv1.Ingress:
		if o.Spec.IngressClassName != nil {
			add("IngressClass", *o.Spec.IngressClassName)
		}
	case *corev1.PersistentVolumeClaim:
		claim(o.Spec)
	case *appsv1.StatefulSet:
		for _, c := range o.Spec.VolumeClaimTemplates {
			claim(c.Spec)
		}
	}
	kind, ok := kinds.Of(obj)
	if !ok || !kind.MakesPods() {
		return named
	}
	spec := &kind.Template(obj).Spec
	if !IsSystem(spec.PriorityClassName) {
		add("PriorityClass", spec.PriorityClassName)
	}
	if spec.RuntimeClassName != nil {
		add("RuntimeClass", *spec.RuntimeClassName)
	}
	for _, v := range spec.Volumes {
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			claim(v.Ephemeral.VolumeClaimTemplate.Spec)
		}
	}
	return named
}

// Missing says, a sentence for each class that an object names, which of the physical clusters are known to have none of that name.
func Missing(obj ctrlclient.Object, in []*workloadv1alpha1.SyncTarget) (sentences []string) {
	for _, r := range Named(obj) {
		sentences = append(sentences, r.Missing(in)...)
	}
	return sentences
}

// Missing says, in a sentence, which of the physical clusters are known to have no such class; in none if all have it.
func (r Reference) Missing(in []*workloadv1alpha1.SyncTarget) []string {
	var without []string
	for _, t := range in {
		if t.LacksClass(r.Kind.Resource(), r.Name) {
			without = append(without, strconv.Quote(t.Name))
		}
	}
	if len(without) == 0 {
		return nil
	}
	slices.Sort(without)
	return []string{fmt.Sprintf("%s %q names no %s of %s: %s", r.Kind.Field, r.Name, r.Kind.Name, strings.Join(slices.Compact(without), ", "), r.Kind.Without)}
}
