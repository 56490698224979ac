package admission

import (
	"context"
	"fmt"
	"strings"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/budget"
	"atoll.dev/atoll/internal/logicalcluster"
)

// manyParams are ConfigMaps, each of so many bytes. It keeps what is read, as upstream does until the last is evaluated.
type manyParams struct {
	size  int
	gets  map[string]int
	lists map[string]int
	read  int64
	ended bool // a read came in a context that had ended
}

func (p *manyParams) Find(context.Context, lc.Name, schema.GroupVersionKind) (schema.GroupVersionResource, bool, error) {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true, nil
}

func (p *manyParams) one(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"a": "b"}}}
	u.SetName(name)
	return u
}

func (p *manyParams) Get(ctx context.Context, _ lc.Name, _ schema.GroupVersionResource, _, name string, weigh func([]byte) error) (*unstructured.Unstructured, error) {
	p.gets[name]++
	p.ended = p.ended || ctx.Err() != nil
	return p.one(name), p.weigh(weigh, p.size)
}

func (p *manyParams) List(ctx context.Context, _ lc.Name, _ schema.GroupVersionResource, _ string, selector labels.Selector, weigh func([]byte) error) ([]*unstructured.Unstructured, error) {
	p.lists[selector.String()]++
	p.ended = p.ended || ctx.Err() != nil
	return []*unstructured.Unstructured{p.one("a"), p.one("b")}, p.weigh(weigh, p.size)
}

func (p *manyParams) weigh(weigh func([]byte) error, size int) error {
	chunk := []byte(strings.Repeat("a", 1<<10))
	for ; size > 0; size -= len(chunk) {
		p.read += int64(len(chunk))
		if err := weigh(chunk); err != nil {
			return err
		}
	}
	return nil
}

// policyWithParams is the plugin of a logical cluster that has one policy, with so many bindings.
func policyWithParams(t *testing.T, given Params, bindings int, ref func(i int) *admissionregistration.ParamRef, ignores, mutating bool) (*dynamic, *budget.Budget) {
	t.Helper()
	failure := admissionregistration.Fail
	if ignores {
		failure = admissionregistration.Ignore
	}
	kind := &admissionregistration.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	policy, _ := policyIn("shop", "p", `params.data.a == "b"`)
	policy.Spec.ParamKind, policy.Spec.FailurePolicy = kind, &failure
	changes := &admissionregistration.MutatingAdmissionPolicy{ObjectMeta: policy.ObjectMeta, Spec: admissionregistration.MutatingAdmissionPolicySpec{
		ParamKind: kind, FailurePolicy: &failure, MatchConstraints: policy.Spec.MatchConstraints, ReinvocationPolicy: "Never",
		Mutations: []admissionregistration.Mutation{{PatchType: "JSONPatch", JSONPatch: &admissionregistration.JSONPatch{Expression: "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': params.data.a}}]"}}},
	}}
	stored := map[schema.GroupResource][]any{validatingPolicies: {policy}, mutatingPolicies: {changes}}
	for i := range bindings {
		_, binding := policyIn("shop", fmt.Sprint("p", i), "")
		binding.Spec.PolicyName, binding.Spec.ParamRef = "p", ref(i)
		binding.Spec.ParamRef.ParameterNotFoundAction = new(admissionregistration.AllowAction)
		stored[validatingPolicyBindings] = append(stored[validatingPolicyBindings], binding)
		stored[mutatingPolicyBindings] = append(stored[mutatingPolicyBindings], &admissionregistration.MutatingAdmissionPolicyBinding{
			ObjectMeta: binding.ObjectMeta, Spec: admissionregistration.MutatingAdmissionPolicyBindingSpec{PolicyName: "p", ParamRef: binding.Spec.ParamRef},
		})
	}
	c := Config{Configurations: configurationsOf(t, stored), Terminating: func(lc.Name) bool { return false }, Params: given, paramBudget: newParamBudget()}
	if mutating {
		return newMutatingPolicies(c), c.paramBudget
	}
	return newValidatingPolicies(c), c.paramBudget
}

// TestParamsAreBounded: what policies are given is read once for a request, however many bindings name it, while the request
// lasts, and no more than the budget of its logical cluster allows; the policy says what then, and all is given back.
func TestParamsAreBounded(t *testing.T) {
	for _, test := range []struct {
		reason   string
		size     int // of each read, in bytes
		bindings int
		ref      func(i int) *admissionregistration.ParamRef
		ignores  bool
		gets     int // different ones
		lists    int
		refused  string
	}{
		{"all name one", 1 << 20, 100, func(int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Name: "same", Namespace: "ns"}
		}, false, 1, 0, ""},
		{"each names one", 1 << 10, 100, func(i int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Name: fmt.Sprint("a", i), Namespace: "ns"}
		}, false, 100, 0, ""},
		{"all select the same", 1 << 20, 100, func(int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Namespace: "ns"}
		}, false, 0, 1, ""},
		{"each names a large one", 1 << 20, 100, func(i int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Name: fmt.Sprint("a", i), Namespace: "ns"}
		}, false, 100, 0, "more memory at once than the 256Mi"},
		{"too much is selected", 50 << 20, 100, func(int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Namespace: "ns"}
		}, false, 0, 1, "more memory at once than the 256Mi"},
		{"too much is selected, and the policy ignores failures", 50 << 20, 100, func(int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Namespace: "ns"}
		}, true, 0, 1, ""},
	} {
		for _, mutating := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mutating: %t", test.reason, mutating), func(t *testing.T) {
				given := &manyParams{size: test.size, gets: map[string]int{}, lists: map[string]int{}}
				d, budget := policyWithParams(t, given, test.bindings, test.ref, test.ignores, mutating)
				ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
				creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
				interfaces := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
				var err error
				if mutating {
					err = d.Admit(ctx, creates.attributes(), interfaces)
				} else {
					err = d.Validate(ctx, creates.attributes(), interfaces)
				}
				if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
					t.Errorf("%.300v, want %q", err, test.refused)
				}
				if len(given.gets) != test.gets || len(given.lists) != test.lists || given.ended {
					t.Errorf("%d different ones were read, and %d lists, want %d and %d", len(given.gets), len(given.lists), test.gets, test.lists)
				}
				for name, n := range given.gets {
					if n != 1 {
						t.Errorf("%s was read %d times", name, n)
					}
				}
				for selector, n := range given.lists {
					if n != 1 {
						t.Errorf("%s was listed %d times", selector, n)
					}
				}
				if given.read > 50<<20 {
					t.Errorf("%d bytes were read", given.read)
				}
				if taken := budget.Taken(); len(taken) != 0 {
					t.Errorf("%v bytes are taken after the request", taken)
				}
			})
		}
	}
}

// TestFewParamsAreRead: who needs few parameters has them also when others have taken all that there is, and only he.
func TestFewParamsAreRead(t *testing.T) {
	for size, refused := range map[int]string{1 << 10: "", 1 << 20: "take all of the 1Gi of memory"} {
		given := &manyParams{size: size, gets: map[string]int{}, lists: map[string]int{}}
		ref := func(i int) *admissionregistration.ParamRef {
			return &admissionregistration.ParamRef{Name: fmt.Sprint("a", i), Namespace: "ns"}
		}
		d, budget := policyWithParams(t, given, 10, ref, false, false)
		for i := range int64(mostParams / mostParamsOfOne) {
			if err := budget.Take(lc.Name(fmt.Sprint("other", i)), mostParamsOfOne); err != nil {
				t.Fatal(err)
			}
		}
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
		creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
		err := d.Validate(ctx, creates.attributes(), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme))
		if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("10 of %d bytes each: %.300v, want %q", size, err, refused)
		}
		if taken := budget.Taken()["shop"]; taken != 0 {
			t.Errorf("%d bytes are taken after the request", taken)
		}
	}
}

// TestParamsEndWithTheirRequest: nobody reads for who has gone.
func TestParamsEndWithTheirRequest(t *testing.T) {
	given := &manyParams{gets: map[string]int{}, lists: map[string]int{}}
	ref := func(int) *admissionregistration.ParamRef {
		return &admissionregistration.ParamRef{Name: "same", Namespace: "ns"}
	}
	d, _ := policyWithParams(t, given, 1, ref, false, false)
	ctx, cancel := context.WithCancel(logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"}))
	creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
	if _, err := d.instance(ctx, creates.attributes()); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = d.Validate(ctx, creates.attributes(), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)) // whatever it says, nobody hears it
	if !given.ended {
		t.Error("parameters are read in a context that goes on")
	}
}
