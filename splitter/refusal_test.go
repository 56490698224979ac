package splitter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestRefusedByHub(t *testing.T) {
	things := schema.GroupResource{Resource: "things"}
	tests := map[string]struct {
		err    error
		want   string
		reason string
	}{
		"none":     {nil, "", "nothing is wrong"},
		"quota":    {apierrors.NewForbidden(things, "x", errors.New("exceeded quota: q")), "QuotaExceeded", "the owner can ask for more"},
		"refused":  {apierrors.NewForbidden(things, "x", errors.New("no")), "Forbidden", "it stays so"},
		"invalid":  {apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "x", nil), "Invalid", "the owner can change it"},
		"large":    {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), "Invalid", "the same"},
		"foreign":  {fmt.Errorf("namespace x of mirror y: %w", errNotAdopted), "NameConflict", "an administrator has to look"},
		"conflict": {apierrors.NewConflict(things, "x", errors.New("changed")), "", "the next try has the newer state"},
		"busy":     {apierrors.NewTooManyRequests("later", 1), "", "it passes"},
		"broken":   {apierrors.NewInternalError(errors.New("etcd")), "", "it passes"},
		"cut off":  {context.DeadlineExceeded, "", "it passes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.err
			if err != nil {
				err = fmt.Errorf("create leaf Thing secretmirror|ns/x: %w", err)
			}
			r := refusedByHub(err)
			if got := r != nil; got != (tc.want != "") || got && r.Reason != tc.want {
				t.Fatalf("%s: refusedByHub = %+v, want %q", tc.reason, r, tc.want)
			}
			if r != nil && (r.Message == "" || strings.Contains(r.Message, "secretmirror")) {
				t.Errorf("the owner is told %q", r.Message)
			}
		})
	}
}

// TestRefusalsOfTheHubReachTheRoot: what a mirror does not take, or what pods need and it does not take, is told to whom
// it concerns, and no more once it is taken.
func TestRefusalsOfTheHubReachTheRoot(t *testing.T) {
	service, _ := pair("Service", "web")
	object, _ := pair("Deployment", "api")
	deployment := object.(*appsv1.Deployment)
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{
		Name: "c", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
	}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "settings", UID: "s", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	for kind, root := range map[string]ctrlclient.Object{"Service": service, "Deployment": deployment} {
		t.Run(kind, func(t *testing.T) {
			m := newMirrored(t, root, settings, placementOf("", "Placed", mirrorEast))
			refuse := true
			m.clients = &client.Clients{Objects: interceptor.NewClient(m.objects, interceptor.Funcs{
				Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
					_, isLeaf := rootOf(o)
					if _, isNamespace := o.(*corev1.Namespace); refuse && isLeaf && !isNamespace {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, o.GetName(), errors.New("exceeded quota: small"))
					}
					return c.Create(ctx, o, opts...)
				},
			})}
			k := key{kind, client.KeyOf(root)}
			told := func() string {
				t.Helper()
				events := &corev1.EventList{}
				if err := m.objects.List(t.Context(), events, ctrlclient.InNamespace("front")); err != nil {
					t.Fatal(err)
				}
				var all []string
				for _, e := range events.Items {
					if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Name == root.GetName() && e.Reason == "QuotaExceeded" {
						all = append(all, e.Message)
					}
				}
				return strings.Join(all, "; ")
			}
			if _, err := m.reconcile(t.Context(), k); !apierrors.IsForbidden(err) {
				t.Fatalf("reconcile: %v, want the refusal, so that it is tried again", err)
			}
			if got := told(); !strings.Contains(got, `"east"`) || !strings.Contains(got, "exceeded quota: small") || strings.Contains(got, mirrorEast) {
				t.Errorf("events say %q", got)
			}
			synced := func() string {
				t.Helper()
				d := &appsv1.Deployment{}
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), d); err != nil {
					t.Fatal(err)
				}
				for _, c := range d.Status.Conditions {
					if c.Type == kinds.ConditionSynced {
						return string(c.Status) + " " + c.Reason + ": " + c.Message
					}
				}
				return ""
			}
			if kind == "Deployment" {
				if got := synced(); !strings.Contains(got, "False QuotaExceeded") || !strings.Contains(got, "exceeded quota: small") {
					t.Errorf("condition Synced says %q", got)
				}
			}
			refuse = false
			m.look(t, k)
			if last, _ := m.told.Get(toldID(root, "hub "+mirrorEast)); last != "" {
				t.Errorf("%q is still said after the hub took it", last)
			}
			if kind == "Deployment" {
				// The informer may not show yet what was written first.
				for began := time.Now(); strings.Contains(synced(), "Quota"); m.look(t, k) {
					if time.Since(began) > time.Minute {
						t.Fatalf("condition Synced still says %q", synced())
					}
				}
			}
		})
	}
}
