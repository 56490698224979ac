package storage

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/value"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
)

func event(namespace, name string) *api.Event {
	return &api.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
		InvolvedObject: api.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "p", APIVersion: "v1"},
		Reason:         "Tested", Message: "m", Type: "Normal", Action: "Test",
		EventTime:           metav1.NewMicroTime(time.Unix(1, 0)),
		ReportingController: "atoll.dev/test", ReportingInstance: "test",
	}
}

func clusterRole(name string, labels map[string]string) *rbac.ClusterRole {
	return &rbac.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
	}
}

func role(namespace, name string) *rbac.Role {
	return &rbac.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
	}
}

func pod(namespace, name string) *api.Pod {
	grace := int64(30)
	enable := true
	return &api.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: api.PodSpec{
			RestartPolicy: api.RestartPolicyAlways, DNSPolicy: api.DNSClusterFirst, TerminationGracePeriodSeconds: &grace,
			EnableServiceLinks: &enable, SecurityContext: &api.PodSecurityContext{}, SchedulerName: "default-scheduler",
			Containers: []api.Container{{Name: "c", Image: "i", ImagePullPolicy: api.PullAlways, TerminationMessagePath: "/dev/termination-log",
				TerminationMessagePolicy: api.TerminationMessageReadFile}},
		},
	}
}

// plain is a transformer that does nothing.
type plain struct{}

func (plain) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	return data, false, nil
}

func (plain) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

type keyContext string

func (k keyContext) AuthenticatedData() []byte { return []byte(k) }

// secret is one with a generated name unless name says otherwise.
func secret(namespace, name string) *api.Secret {
	s := &api.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if name == "" {
		s.GenerateName = "s-"
	}
	return s
}

func claim(namespace, name string) *api.PersistentVolumeClaim {
	return &api.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: api.PersistentVolumeClaimSpec{
			AccessModes: []api.PersistentVolumeAccessMode{api.ReadWriteOnce},
			Resources:   api.VolumeResourceRequirements{Requests: api.ResourceList{api.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}
