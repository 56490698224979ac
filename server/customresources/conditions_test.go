package customresources

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// defined is a definition as storage would hold it, of a logical cluster and at a resourceVersion.
func defined(t *testing.T, s *specs, cluster, version string, change func(*apiextensionsv1.CustomResourceDefinition)) *Definition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.shop.example", ResourceVersion: version, Annotations: map[string]string{lcctx.Annotation: cluster}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "shop.example", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"}, Categories: []string{"all"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
			}}},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
		},
	}
	if change != nil {
		change(crd)
	}
	stored := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, stored, nil); err != nil {
		t.Fatal(err)
	}
	def, err := s.define(stored)
	if err != nil {
		t.Fatal(err)
	}
	return def
}

// said is what conditions say, without times.
func said(conditions []condition) []string {
	all := []string{}
	for _, c := range conditions {
		all = append(all, string(c.Type)+"="+string(c.Status)+" "+c.Reason+": "+c.Message)
	}
	return all
}

func TestDecide(t *testing.T) {
	const (
		accepted    = "NamesAccepted=True NoConflicts: no conflicts found"
		established = "Established=True InitialNamesAccepted: the initial names have been accepted"
		notAccepted = "Established=False NotAccepted: not all names are accepted"
	)
	type crd = *apiextensionsv1.CustomResourceDefinition
	all := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"}, Categories: []string{"all"}}
	without := func(change func(*apiextensionsv1.CustomResourceDefinitionNames)) apiextensionsv1.CustomResourceDefinitionNames {
		some := all
		change(&some)
		return some
	}
	long := metav1.NewTime(time.Unix(1000, 0))
	was := func(c crd) {
		c.Status.AcceptedNames = all
		c.Status.Conditions = []condition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found", LastTransitionTime: long},
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, Reason: "InitialNamesAccepted", Message: "the initial names have been accepted", LastTransitionTime: long},
		}
	}
	for _, tc := range []struct {
		reason           string
		change           func(crd)
		resources, kinds []string
		wantNames        apiextensionsv1.CustomResourceDefinitionNames
		want             []string
	}{
		{reason: "new", wantNames: all, want: []string{accepted, established}},
		{
			reason: "the plural is somebody's short name", resources: []string{"widgets"},
			wantNames: without(func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.Plural = "" }),
			want:      []string{`NamesAccepted=False PluralConflict: "widgets" is already in use`, notAccepted},
		},
		{
			reason: "the singular is in use", resources: []string{"widget"},
			wantNames: without(func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.Singular = "" }),
			want:      []string{`NamesAccepted=False SingularConflict: "widget" is already in use`, notAccepted},
		},
		{
			reason: "two short names are in use", resources: []string{"wd", "wi"},
			change:    func(c crd) { c.Spec.Names.ShortNames = []string{"wd", "w", "wi"} },
			wantNames: without(func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.ShortNames = nil }),
			want:      []string{`NamesAccepted=False ShortNamesConflict: "wd" is already in use, "wi" is already in use`, notAccepted},
		},
		{
			reason: "the kind is in use", kinds: []string{"Widget"},
			wantNames: without(func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.Kind = "" }),
			want:      []string{`NamesAccepted=False KindConflict: "Widget" is already in use`, notAccepted},
		},
		{
			reason: "the kind of lists is in use", kinds: []string{"WidgetList"},
			wantNames: without(func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.ListKind = "" }),
			want:      []string{`NamesAccepted=False ListKindConflict: "WidgetList" is already in use`, notAccepted},
		},
		{
			reason: "kinds and resources are different spaces", resources: []string{"Widget"}, kinds: []string{"widget"},
			wantNames: all, want: []string{accepted, established},
		},
		{
			reason: "what it has it keeps, whoever claims it later", change: was, resources: []string{"widgets", "wd"}, kinds: []string{"Widget"},
			wantNames: all, want: []string{accepted, established},
		},
		{
			reason: "established, and then it asks for a name in use", resources: []string{"wx"},
			change:    func(c crd) { was(c); c.Spec.Names.ShortNames = []string{"wx"} },
			wantNames: all, want: []string{`NamesAccepted=False ShortNamesConflict: "wx" is already in use`, established},
		},
		{
			reason:    "a webhook with a bundle that is none",
			change:    func(c crd) { c.Spec.Conversion = webhookWith([]byte("nonsense")) },
			wantNames: all, want: []string{accepted, "Established=False InvalidCABundle: The conversion webhook CABundle is invalid"},
		},
		{
			reason: "established, and then such a webhook", change: func(c crd) { was(c); c.Spec.Conversion = webhookWith([]byte("nonsense")) },
			wantNames: all, want: []string{accepted, established},
		},
		{
			reason: "unknown fields are kept", change: func(c crd) { c.Spec.PreserveUnknownFields = true },
			wantNames: all, want: []string{accepted, established, "NonStructuralSchema=True Violations: spec.preserveUnknownFields: Invalid value: true: must be false"},
		},
		{
			reason: "it was not structural, and is", change: func(c crd) {
				was(c)
				c.Status.Conditions = append(c.Status.Conditions, condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue})
			},
			wantNames: all, want: []string{accepted, established},
		},
		{
			reason: "a group of the community, approved", change: func(c crd) {
				c.Spec.Group = "shop.k8s.io"
				c.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = "https://example.org/1"
			},
			wantNames: all, want: []string{accepted, established, "KubernetesAPIApprovalPolicyConformant=True ApprovedAnnotation: approved in https://example.org/1"},
		},
		{
			reason: "and not approved", change: func(c crd) {
				c.Spec.Group = "shop.k8s.io"
				c.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = "unapproved, a test"
			},
			wantNames: all, want: []string{accepted, established, `KubernetesAPIApprovalPolicyConformant=False UnapprovedAnnotation: not approved: "unapproved, a test"`},
		},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			def := defined(t, &specs{}, "a", "1", tc.change)
			before := def.DeepCopy()
			status := decide(def, names{resources: sets.New(tc.resources...), kinds: sets.New(tc.kinds...)}, time.Unix(2000, 0))
			if diff := cmp.Diff(tc.want, said(status.Conditions)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantNames, status.AcceptedNames); diff != "" {
				t.Errorf("accepted names (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, def.CustomResourceDefinition); diff != "" {
				t.Errorf("the definition itself was changed:\n%s", diff)
			}
			for _, c := range status.Conditions {
				// was sets the times of those that it sets.
				if since := c.LastTransitionTime.Unix(); since != 2000 && (since != 1000 || isTrue(before.Status.Conditions, c.Type) != (c.Status == apiextensionsv1.ConditionTrue)) {
					t.Errorf("%s is %s since %d", c.Type, c.Status, since)
				}
			}
			again, err := def.withStatus(status)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(status, decide(again, names{resources: sets.New(tc.resources...), kinds: sets.New(tc.kinds...)}, time.Unix(3000, 0))); diff != "" {
				t.Errorf("decided again, it is something else:\n%s", diff)
			}
		})
	}
}

func webhookWith(bundle []byte) *apiextensionsv1.CustomResourceConversion {
	url := "https://example.org/convert"
	return &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: bundle}, ConversionReviewVersions: []string{"v1"},
	}}
}

// Names that others only ask for are free, and a definition does not conflict with itself.
func TestTaken(t *testing.T) {
	s := &specs{}
	self := defined(t, s, "a", "1", func(c *apiextensionsv1.CustomResourceDefinition) {
		c.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"}
	})
	other := defined(t, s, "a", "2", func(c *apiextensionsv1.CustomResourceDefinition) {
		c.Name, c.Spec.Names.Plural = "gadgets.shop.example", "gadgets"
		c.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", ShortNames: []string{"g"}, Kind: "Gadget", ListKind: "GadgetList"}
	})
	builtin := names{resources: sets.New("things", "thing"), plurals: sets.New("things"), kinds: sets.New("Thing")}
	got := taken(builtin, []*Definition{self, other}, self)
	if want := sets.New("things", "thing", "gadgets", "g", ""); !got.resources.Equal(want) {
		t.Errorf("resources taken: %v, want %v", sets.List(got.resources), sets.List(want))
	}
	if want := sets.New("Thing", "Gadget", "GadgetList"); !got.kinds.Equal(want) {
		t.Errorf("kinds taken: %v, want %v", sets.List(got.kinds), sets.List(want))
	}
	if builtin.resources.Has("gadgets") {
		t.Error("built-in names were changed")
	}
	if none := taken(names{}, nil, self); none.resources.Len() > 0 || none.kinds.Len() > 0 {
		t.Errorf("taken where there is nothing: %v", none)
	}
}

func TestNextLook(t *testing.T) {
	for awaited, want := range map[time.Duration]time.Duration{
		-time.Second: firstLook, 0: firstLook, 4 * time.Second: time.Second, time.Hour: lastLook,
	} {
		if got := nextLook(awaited); got != want {
			t.Errorf("after %s: look again in %s, want %s", awaited, got, want)
		}
	}
}
