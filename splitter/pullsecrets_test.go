package splitter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

func TestPullSecretsOfTheDefaultAccount(t *testing.T) {
	account := func(names ...string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}, ImagePullSecrets: references(names)}
	}
	leaf := func(generation string, names ...string) ctrlclient.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{workloadv1alpha1.RootUIDLabel: "root"},
			Annotations: map[string]string{workloadv1alpha1.RootGenerationAnnotation: generation},
		}}
		d.Spec.Template.Spec.ImagePullSecrets = references(names)
		return d
	}
	cases := map[string]struct {
		account *corev1.ServiceAccount // nil: there is none
		named   string
		own     []string
		leaves  []ctrlclient.Object
		want    []string
		reason  string
	}{
		"none":             {account(), "", nil, nil, nil, "the account has no pull Secrets"},
		"no account":       {nil, "", nil, nil, nil, "as with an account without"},
		"taken over":       {account("a", "b"), "", nil, nil, []string{"a", "b"}, "as admission would have"},
		"named default":    {account("a"), "default", nil, nil, []string{"a"}, "the same account"},
		"other account":    {account("a"), "other", nil, nil, nil, "that one goes down by itself"},
		"own":              {account("a"), "", []string{"mine"}, nil, []string{"mine"}, "admission leaves pods with Secrets of their own alone"},
		"rendered with":    {account("new"), "", nil, []ctrlclient.Object{leaf("6"), leaf("7", "old")}, []string{"old"}, "a change of the account rolls out nothing"},
		"rendered without": {account("new"), "", nil, []ctrlclient.Object{leaf("7")}, nil, "nor does one that it did not have"},
		"new generation":   {account("new"), "", nil, []ctrlclient.Object{leaf("6", "old")}, []string{"new"}, "the next rendering has it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(client.Scheme)
			if tc.account != nil {
				builder.WithObjects(tc.account)
			}
			c := &Controller{clients: &client.Clients{Objects: builder.Build()}}
			root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "root", Generation: 7}}
			root.Spec.Template.Spec.ServiceAccountName = tc.named
			root.Spec.Template.Spec.ImagePullSecrets = references(tc.own)
			before := root.DeepCopy()
			got, err := c.withPullSecrets(t.Context(), root, tc.leaves)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(references(tc.want), podsOf(got).Spec.ImagePullSecrets); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("the informer's object was changed:\n%s", diff)
			}
		})
	}
}

func references(names []string) (refs []corev1.LocalObjectReference) {
	for _, n := range names {
		refs = append(refs, corev1.LocalObjectReference{Name: n})
	}
	return refs
}

// TestSecretBesidePullSecrets: a Secret is looked after also where a Deployment pulls with Secrets of its own, and names no ServiceAccount.
func TestSecretBesidePullSecrets(t *testing.T) {
	t.Parallel()
	root, leaf := pair("Deployment", "web")
	for _, o := range []ctrlclient.Object{root, leaf} {
		pods := &o.(*appsv1.Deployment).Spec.Template.Spec
		pods.ImagePullSecrets = references([]string{"registry"})
		pods.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}}}
	}
	m := newMirrored(t, root, leaf, placementOf("", "Placed", mirrorEast))
	for _, name := range []string{"password", "registry"} {
		mirrors, err := m.referencing(t.Context(), m.sources["Secret"], client.Key{Cluster: "shop", Namespace: "front", Name: name})
		if diff := cmp.Diff([]logicalcluster.Name{mirrorEast}, mirrors); err != nil || diff != "" {
			t.Errorf("Secret %s goes to (-want +got):\n%s%v", name, diff, err)
		}
	}
}
