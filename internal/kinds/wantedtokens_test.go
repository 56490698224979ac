package kinds

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// TestWantedTokens: what was rendered is read back, of leaves of each kind and of pods, and nothing else is.
func TestWantedTokens(t *testing.T) {
	given := func(account string, mount bool, sources ...corev1.VolumeProjection) corev1.PodTemplateSpec {
		spec := corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{}}, Volumes: []corev1.Volume{projected("v", sources...)}}
		access := ProjectedAPIAccess
		if mount {
			access = MountedAPIAccess
		}
		giveAPIAccess(&spec, access)
		return corev1.PodTemplateSpec{Spec: spec}
	}
	deployment := func(template corev1.PodTemplateSpec) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: template}}
	}
	job := func(conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{Spec: batchv1.JobSpec{Template: given("bot", true)}, Status: batchv1.JobStatus{Conditions: conditions}}
	}
	now := time.Unix(1000, 0)
	// goes since so many seconds, or in so many.
	goes := func(obj ctrlclient.Object, since int64) ctrlclient.Object {
		obj.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(now.Unix()-since, 0)})
		return obj
	}
	taking := func(seconds *int64) *appsv1.Deployment {
		d := deployment(given("bot", true))
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = seconds
		return d
	}
	pod := func() *corev1.Pod { return &corev1.Pod{Spec: given("bot", true).Spec} }
	bot := []Token{{"bot", ""}}
	for name, tc := range map[string]struct {
		reason string
		leaf   ctrlclient.Object
		want   []Token
	}{
		"Mounted":     {"as admission would", deployment(given("bot", true)), bot},
		"Default":     {"of pods that name no account", deployment(given("", true)), []Token{{"default", ""}}},
		"Audiences":   {"each once", deployment(given("bot", true, tokenFor("vault", "v"), tokenFor("a", "a"), tokenFor("vault", "again"))), []Token{{"bot", ""}, {"bot", "a"}, {"bot", "vault"}}},
		"Other":       {"not for the API", deployment(given("bot", false, tokenFor("vault", "v"))), []Token{{"bot", "vault"}}},
		"None":        {"nobody asks for one", deployment(given("bot", false)), nil},
		"NotRendered": {"a projection is no record", deployment(corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", tokenFor("", "t"))}}}), nil},
		"AnotherAccount": {"a pod has its own account's", deployment(corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", files("other", "token", "t"))},
		}}), nil},
		"All": {"a volume of all keys was never rendered", deployment(corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: TokenSecret("bot")}}}, projected("v", files("bot")),
		}}}), nil},
		"DaemonSet":      {"", &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: given("bot", true)}}, bot},
		"StatefulSet":    {"", &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: given("bot", true)}}, bot},
		"Job":            {"", job(), bot},
		"JobFailing":     {"its pods end", job(batchv1.JobCondition{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}), bot},
		"JobEnded":       {"nothing of it runs", job(batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}), nil},
		"Pod":            {"as its mirror shows it", pod(), bot},
		"PodEnded":       {"nothing of it runs", &corev1.Pod{Spec: pod().Spec, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, nil},
		"PodGoing":       {"it has its time until then", goes(pod(), -1), bot},
		"PodGone":        {"its time is over, however long its row stays", goes(pod(), 0), nil},
		"Going":          {"its pods have half a minute", goes(taking(nil), 29), bot},
		"Gone":           {"", goes(taking(nil), 30), nil},
		"GoingWithTime":  {"its pods have the time that they ask for", goes(taking(ptr.To(int64(600))), 599), bot},
		"GoneWithTime":   {"", goes(taking(ptr.To(int64(600))), 600), nil},
		"GoneAtOnce":     {"its pods have none", goes(taking(ptr.To(int64(0))), 0), nil},
		"GoingForEver":   {"that is what it asks for", goes(taking(ptr.To(int64(math.MaxInt64))), 600), bot},
		"GoingByAnother": {"a server whose clock is ahead", goes(taking(ptr.To(int64(math.MaxInt64))), -600), bot},
		"ConfigMap":      {"it makes no pods", &corev1.ConfigMap{}, nil},
		"Before":         {"nobody rendered it so: whoever wrote it knew how it would look", deployment(given("bot", true)), nil},
	} {
		k, _ := Of(tc.leaf)
		if name != "Before" {
			SetAPIAccess(tc.leaf, ProjectedAPIAccess)
		}
		before := tc.leaf.DeepCopyObject()
		if diff := cmp.Diff(tc.want, k.WantedTokens(tc.leaf, now)); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", name, tc.reason, diff)
		}
		if diff := cmp.Diff(before, tc.leaf); diff != "" {
			t.Errorf("%s: the leaf was changed (-before +after):\n%s", name, diff)
		}
	}
}

// TestNobodyWritesWhatIsWanted: of no kind goes down what somebody wrote as if it had been rendered, and he is told.
func TestNobodyWritesWhatIsWanted(t *testing.T) {
	for _, k := range All {
		if !k.MakesPods() {
			continue
		}
		spec := corev1.PodSpec{ServiceAccountName: "admin", Containers: []corev1.Container{{Name: "c"}}, Volumes: []corev1.Volume{projected("v", files("admin", "token", "t"))}}
		root := k.New()
		if pod, ok := root.(*corev1.Pod); ok {
			pod.Spec = spec
		} else {
			k.Template(root).Spec = spec
		}
		for _, access := range []APIAccess{NoAPIAccess, ProjectedAPIAccess} {
			SetAPIAccess(root, ProjectedAPIAccess)
			if written := k.WantedTokens(root, time.Now()); len(written) != 1 {
				t.Errorf("%s: %v are read of what was written, want the token", k.GVK.Kind, written)
			}
			SetAPIAccess(root, access)
			down := k.Content(root)
			SetAPIAccess(down, ProjectedAPIAccess)
			if wanted := k.WantedTokens(down, time.Now()); len(wanted) > 0 {
				t.Errorf("%s, %q: %v are wanted by what goes down", k.GVK.Kind, access, wanted)
			}
		}
		if told := k.WhatIsDropped(root); len(told) != 1 {
			t.Errorf("%s: told is %q, want one sentence", k.GVK.Kind, told)
		}
	}
}
