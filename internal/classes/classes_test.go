package classes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text)) // numbers as an answer has them
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRead: what is told of a class is the same of one that was thinned, and holds nothing that may name a Secret.
func TestRead(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"StorageClass": {
			object: `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a, annotations: {storageclass.kubernetes.io/is-default-class: "true", x: hush}},
				provisioner: p, parameters: {secret: hush}, mountOptions: [hush], reclaimPolicy: Retain, allowVolumeExpansion: true}`,
			want: "default p Retain Immediate true",
		},
		"IngressClass": {
			object: `{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: c, parameters: {kind: hush, name: hush}}}`,
			want:   "c",
		},
		"PriorityClass": {
			object: `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: a}, value: 7, globalDefault: true, description: long}`,
			want:   "default 7 PreemptLowerPriority long",
		},
		"RuntimeClass": {
			object: `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: a}, handler: h, overhead: {podFixed: {cpu: 250m}}, scheduling: {nodeSelector: {hush: hush}}}`,
			want:   "h cpu=250m",
		},
	} {
		i := slices.IndexFunc(All, func(k Kind) bool { return k.Name == name })
		k, o := All[i], parse(t, tc.object)
		c, thin := k.Read(o), k.Thin(o)
		if !Same(c, k.Read(thin)) || strings.Contains(fmt.Sprint(thin.Object), "hush") || c.Name != "a" {
			t.Errorf("%s: %v is thinned to %v", name, c, thin.Object)
		}
		var words []string
		if c.Default {
			words = append(words, "default")
		}
		for _, text := range []string{c.Provisioner, c.ReclaimPolicy, c.VolumeBindingMode, c.Controller, c.Handler} {
			if text != "" {
				words = append(words, text)
			}
		}
		if c.AllowVolumeExpansion {
			words = append(words, "true")
		}
		if c.PreemptionPolicy != "" {
			words = append(words, fmt.Sprint(c.Value), c.PreemptionPolicy, c.Description)
		}
		for name, q := range c.Overhead {
			words = append(words, string(name)+"="+q.String())
		}
		if got := strings.Join(words, " "); got != tc.want {
			t.Errorf("%s: told %q, want %q", name, got, tc.want)
		}
		if of := k.Of([]workloadv1alpha1.Class{c}); len(of.Items) != 1 {
			t.Errorf("%s is not valid: %v", name, c)
		}
		if shown := k.Show(c); shown.GetName() != "a" || strings.Contains(fmt.Sprint(shown), "hush") {
			t.Errorf("%s is shown as %v", name, shown)
		}
	}
}

// TestChecked: bounds on what a physical cluster, or who owns a SyncTarget, can have others be shown.
func TestChecked(t *testing.T) {
	class := func(name string) workloadv1alpha1.Class {
		return workloadv1alpha1.Class{Name: name, Handler: "h"}
	}
	var many []workloadv1alpha1.Class
	for i := range Most + 10 {
		many = append(many, class(fmt.Sprintf("c-%03d", i)))
	}
	long := strings.Repeat("x", longest+1)
	for name, tc := range map[string]struct {
		items   []workloadv1alpha1.Class
		want    int
		omitted int32
	}{
		"sorted":        {items: []workloadv1alpha1.Class{class("b"), class("a")}, want: 2},
		"twice":         {items: []workloadv1alpha1.Class{class("a"), class("a")}, want: 1},
		"many":          {items: many, want: Most, omitted: 10},
		"no name":       {items: []workloadv1alpha1.Class{class("A b")}, omitted: 1},
		"long":          {items: []workloadv1alpha1.Class{{Name: "a", Handler: long}}, omitted: 1},
		"other fields":  {items: []workloadv1alpha1.Class{{Name: "a", Handler: "h", Provisioner: "p"}}, omitted: 1},
		"no handler":    {items: []workloadv1alpha1.Class{{Name: "a"}}, omitted: 1},
		"not less than": {items: []workloadv1alpha1.Class{{Name: "a", Handler: "h", Overhead: corev1.ResourceList{"no name!": {}}}}, omitted: 1},
	} {
		got := Checked([]workloadv1alpha1.ClassesOf{{Resource: "runtimeclasses.node.k8s.io", Items: tc.items}, {Resource: "secrets", Items: tc.items}})
		if len(got) != 1 || len(got[0].Items) != tc.want || got[0].Omitted != tc.omitted ||
			!slices.IsSortedFunc(got[0].Items, func(a, b workloadv1alpha1.Class) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%s: %v", name, got)
		}
		if again := Checked(got); len(again) != 1 || len(again[0].Items) != tc.want || again[0].Omitted != tc.omitted {
			t.Errorf("%s: checked again it is %v", name, again)
		}
	}
	if text := cut(strings.Repeat("é", longest)); len(text) > longest || !strings.HasSuffix(text, "é...") {
		t.Errorf("cut to %q", text)
	}
	system := All[2].Of([]workloadv1alpha1.Class{{Name: "system-node-critical", Value: 2, PreemptionPolicy: "Never"}})
	if len(system.Items) > 0 || system.Omitted > 0 {
		t.Errorf("what every cluster has by itself is told: %v", system)
	}
}

// TestMissing: in words, and only of clusters that are known to have none.
func TestMissing(t *testing.T) {
	target := func(name string, has ...string) *workloadv1alpha1.SyncTarget {
		t := &workloadv1alpha1.SyncTarget{}
		t.Name = name
		for _, k := range All {
			of := workloadv1alpha1.ClassesOf{Resource: k.Resource()}
			for _, class := range has {
				of.Items = append(of.Items, workloadv1alpha1.Class{Name: class})
			}
			t.Status.Classes = append(t.Status.Classes, of)
		}
		return t
	}
	east, west, unknown := target("east", "high"), target("west"), &workloadv1alpha1.SyncTarget{}
	more := target("more")
	for i := range more.Status.Classes {
		more.Status.Classes[i].Omitted = 1
	}
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{PriorityClassName: "high", RuntimeClassName: ptr.To("kata")}}
	system := corev1.PodTemplateSpec{Spec: corev1.PodSpec{PriorityClassName: "system-node-critical"}}
	for name, tc := range map[string]struct {
		object ctrlclient.Object
		want   []string
	}{
		"Deployment": {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: pod}}, []string{
			`priorityClassName "high" names no PriorityClass of "west": pods are refused there`,
			`runtimeClassName "kata" names no RuntimeClass of "east", "west": pods are refused there`,
		}},
		"system": {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: system}}, nil},
		"StatefulSet": {&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []corev1.PersistentVolumeClaim{
			{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("high")}}, {Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("")}}, {},
		}}}, []string{`storageClassName "high" names no StorageClass of "west": claims of it wait there`}},
		"Ingress": {&networkingv1.Ingress{Spec: networkingv1.IngressSpec{IngressClassName: ptr.To("high")}},
			[]string{`ingressClassName "high" names no IngressClass of "west": nobody serves it there`}},
		"ConfigMap": {&corev1.ConfigMap{}, nil},
	} {
		if got := Missing(tc.object, []*workloadv1alpha1.SyncTarget{west, east, unknown, more}); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
