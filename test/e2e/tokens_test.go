package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/test/framework"
)

// podsAddress is what pods reach the server by; nothing here runs in them.
const podsAddress = "atoll.example"

// talking is a workspace whose pods talk to its API, from one physical cluster.
type talking struct {
	*testing.T
	a       *framework.Atoll
	clients *client.Clients
	east    *framework.Physical
	cluster logicalcluster.Name
	in      context.Context
	below   string // the namespace default of the workspace
	foreign string // somebody else's namespace in the physical cluster
}

// TestPodsTalkToTheAPI: what runs in a physical cluster has what clients in pods look for, and it leads to the API of its workspace.
func TestPodsTalkToTheAPI(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t, "--external-hostname="+podsAddress)
	w := &talking{T: t, a: a, clients: a.Clients(), east: framework.StartPhysical(t, "east")}
	w.cluster = framework.MakeWorkspace(t, w.clients, "root", "talking")
	w.in = client.In(t.Context(), w.cluster)
	kubeconfig, err := os.ReadFile(w.east.Kubeconfig)
	must(t, err)
	_, err = w.clients.Kube.CoreV1().Secrets("default").Create(w.in, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.clients.Objects.Create(w.in, &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "east"},
		Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: "east", Namespace: "default"}},
	}))
	for _, part := range []struct {
		name string
		run  func(*talking)
	}{
		{"ADeployment", (*talking).deployment},
		{"ItsAudiences", (*talking).audiences},
		{"APodOfItsOwn", (*talking).pod},
		{"AnAccountThatSaysNo", (*talking).saysNo},
		{"BeforeItsAccount", (*talking).beforeItsAccount},
		{"AnAccountMadeAnew", (*talking).accountAnew},
		{"ASecretThatIsTakenAway", (*talking).secretTakenAway},
		{"ATemplateThatSaysNo", (*talking).saysNoNow},
		{"ANamespaceOfOthers", (*talking).foreignNamespace},
		{"NothingIsWrittenTwice", (*talking).rests},
	} {
		t.Run(part.name, func(t *testing.T) {
			of := *w
			of.T = t
			a.Use(t)
			w.east.Use(t)
			part.run(&of)
			w.below, w.foreign = of.below, of.foreign
		})
	}
}

func (w *talking) account(name string, automount *bool) {
	w.Helper()
	_, err := w.clients.Kube.CoreV1().ServiceAccounts("default").Create(w.in, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: name}, AutomountServiceAccountToken: automount,
	}, metav1.CreateOptions{})
	must(w.T, err)
}

// deploy makes a Deployment of one pod of an account.
func (w *talking) deploy(name, account string, volumes ...corev1.Volume) {
	w.Helper()
	w.deployIn("default", name, account, volumes...)
}

func (w *talking) deployIn(namespace, name, account string, volumes ...corev1.Volume) {
	w.Helper()
	labels := map[string]string{"app": name}
	_, err := w.clients.Kube.AppsV1().Deployments(namespace).Create(w.in, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{ServiceAccountName: account, Volumes: volumes, Containers: []corev1.Container{{
				Name: "app", Image: "registry.k8s.io/pause:3.10",
			}}},
		}},
	}, metav1.CreateOptions{})
	must(w.T, err)
}

// down waits until the physical cluster has the Deployment.
func (w *talking) down(name string) *appsv1.Deployment {
	w.Helper()
	var found *appsv1.Deployment
	framework.Eventually(w.T, patience, name+" is in the physical cluster", func() string {
		list, err := w.east.Clientset().AppsV1().Deployments("").List(w.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel})
		if err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(list.Items, func(d appsv1.Deployment) bool { return d.Name == name })
		if i < 0 {
			return fmt.Sprintf("it has %d others", len(list.Items))
		}
		found, w.below = &list.Items[i], list.Items[i].Namespace
		return ""
	})
	return found
}

// secret waits until the physical cluster has what the pods of an account talk to the API with.
func (w *talking) secret(account string, keys ...string) map[string][]byte {
	w.Helper()
	var data map[string][]byte
	framework.Eventually(w.T, patience, "the tokens of "+account+" are there", func() string {
		s, err := w.east.Clientset().CoreV1().Secrets(w.below).Get(w.Context(), "atoll-token-"+account, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, key := range keys {
			if len(s.Data[key]) == 0 {
				return fmt.Sprintf("it has no %s", key)
			}
		}
		data = s.Data
		return ""
	})
	return data
}

// as is who shows what is in a Secret below, as a client in a pod does that knows neither a path nor a workspace.
func (w *talking) as(data map[string][]byte) kubernetes.Interface {
	w.Helper()
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: w.a.URL, BearerToken: string(data["token"]), TLSClientConfig: rest.TLSClientConfig{CAData: data["ca.crt"], ServerName: string(data["host"])},
	})
	must(w.T, err)
	return kube
}

func (w *talking) deployment() {
	w.account("robot", nil)
	_, err := w.clients.Kube.RbacV1().Roles("default").Create(w.in, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{})
	must(w.T, err)
	_, err = w.clients.Kube.RbacV1().RoleBindings("default").Create(w.in, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "robot"}},
	}, metav1.CreateOptions{})
	must(w.T, err)
	w.deploy("web", "robot")

	pods := w.down("web").Spec.Template.Spec
	data := w.secret("robot", "token", "ca.crt", "namespace", "host", "port")
	if string(data["namespace"]) != "default" || string(data["host"]) != podsAddress || !strings.HasSuffix(w.a.URL, ":"+string(data["port"])) {
		w.Errorf("pods are told of namespace %s at %s:%s, the server is at %s", data["namespace"], data["host"], data["port"], w.a.URL)
	}
	app := pods.Containers[0]
	mounted := slices.ContainsFunc(app.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" && m.ReadOnly
	})
	if !mounted || len(app.Env) < 1 || app.Env[0].Name != "KUBERNETES_SERVICE_HOST" || ptr.Deref(pods.AutomountServiceAccountToken, true) {
		w.Errorf("its container has %v and %v, and automounts: %v; want a token of the workspace, and none of the physical cluster", app.VolumeMounts, app.Env, pods.AutomountServiceAccountToken)
	}

	robot := w.as(data)
	review, err := robot.AuthenticationV1().SelfSubjectReviews().Create(w.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(w.T, err)
	if who := review.Status.UserInfo.Username; who != "system:serviceaccount:default:robot" {
		w.Errorf("the token is %s", who)
	}
	list, err := robot.CoreV1().ConfigMaps("default").List(w.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		w.Errorf("it lists %d ConfigMaps, %v; its workspace has some", len(list.Items), err)
	}
	if _, err := robot.CoreV1().Secrets("default").List(w.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		w.Errorf("it lists Secrets: %v, want what its role says and no more", err)
	}
	// The physical cluster knows it as nobody.
	config := w.east.RESTConfig()
	config.TLSClientConfig.CertData, config.TLSClientConfig.KeyData, config.TLSClientConfig.CertFile, config.TLSClientConfig.KeyFile = nil, nil, "", ""
	config.BearerToken = string(data["token"])
	stranger, err := kubernetes.NewForConfig(config)
	must(w.T, err)
	if _, err := stranger.CoreV1().Pods(w.below).List(w.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		w.Errorf("the physical cluster says %v to the token, want that it knows nobody by it", err)
	}
}

func (w *talking) audiences() {
	w.deploy("vaulted", "robot", corev1.Volume{Name: "vault", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", Path: "token"}},
	}}}})
	w.down("vaulted")
	key := "token-" + base64.RawURLEncoding.EncodeToString([]byte("vault"))
	data := w.secret("robot", "token", key)
	review, err := w.clients.Kube.AuthenticationV1().TokenReviews().Create(w.in, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: string(data[key]), Audiences: []string{"vault"}},
	}, metav1.CreateOptions{})
	must(w.T, err)
	if s := review.Status; !s.Authenticated || s.User.Username != "system:serviceaccount:default:robot" || !cmp.Equal(s.Audiences, []string{"vault"}) {
		w.Errorf("vault learns %+v of the token", s)
	}
}

func (w *talking) pod() {
	w.account("pilot", nil)
	_, err := w.clients.Kube.CoreV1().Pods("default").Create(w.in, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "op"},
		Spec:       corev1.PodSpec{ServiceAccountName: "pilot", Containers: []corev1.Container{{Name: "app", Image: "registry.k8s.io/pause:3.10"}}},
	}, metav1.CreateOptions{})
	must(w.T, err)
	var below *corev1.Pod
	framework.Eventually(w.T, patience, "the pod is in the physical cluster", func() string {
		below, err = w.east.Clientset().CoreV1().Pods(w.below).Get(w.Context(), "op", metav1.GetOptions{})
		return problemOf(err)
	})
	data := w.secret("pilot", "token")
	names := 0
	for _, v := range below.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil {
				w.Errorf("volume %s has a token of the physical cluster", v.Name)
			}
			if s.Secret != nil && s.Secret.Name == "atoll-token-pilot" {
				names++
			}
		}
	}
	if names == 0 {
		w.Errorf("its volumes %v name no token of the workspace", below.Spec.Volumes)
	}
	review, err := w.as(data).AuthenticationV1().SelfSubjectReviews().Create(w.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(w.T, err)
	if who := review.Status.UserInfo.Username; who != "system:serviceaccount:default:pilot" {
		w.Errorf("the token is %s", who)
	}
}

func (w *talking) saysNo() {
	w.account("quiet", ptr.To(false))
	w.deploy("quiet", "quiet")
	if pods := w.down("quiet").Spec.Template.Spec; len(pods.Volumes) > 0 || len(pods.Containers[0].Env) > 0 {
		w.Errorf("its pods have %v and %v", pods.Volumes, pods.Containers[0].Env)
	}
	if _, err := w.east.Clientset().CoreV1().Secrets(w.below).Get(w.Context(), "atoll-token-quiet", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.Errorf("it has tokens: %v", err)
	}
}

func (w *talking) beforeItsAccount() {
	w.deploy("early", "late")
	framework.Eventually(w.T, patience, "the Deployment says what it waits for", func() string {
		d, err := w.clients.Kube.AppsV1().Deployments("default").Get(w.in, "early", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, `no ServiceAccount "late"`)
		}) {
			return fmt.Sprintf("%+v", d.Status.Conditions)
		}
		return ""
	})
	w.account("late", nil)
	w.down("early")
	w.secret("late", "token")
	framework.Eventually(w.T, patience, "the Deployment is ready", func() string {
		d, err := w.clients.Kube.AppsV1().Deployments("default").Get(w.in, "early", metav1.GetOptions{})
		if err != nil || d.Status.ReadyReplicas != 1 {
			return fmt.Sprintf("%+v %v", d.Status, err)
		}
		return ""
	})
}

func (w *talking) secretTakenAway() {
	before := w.secret("robot", "token")
	must(w.T, w.east.Clientset().CoreV1().Secrets(w.below).Delete(w.Context(), "atoll-token-robot", metav1.DeleteOptions{}))
	after := w.secret("robot", "token", "ca.crt")
	if string(after["token"]) == string(before["token"]) {
		w.Error("it is the same token, which nobody had any more")
	}
}

// accountAnew: whoever starts with the tokens of an account that was deleted would be nobody.
func (w *talking) accountAnew() {
	remove := func() {
		must(w.T, w.clients.Kube.AppsV1().Deployments("default").Delete(w.in, "early", metav1.DeleteOptions{}))
		must(w.T, w.clients.Kube.CoreV1().ServiceAccounts("default").Delete(w.in, "late", metav1.DeleteOptions{}))
	}
	remove()
	framework.Eventually(w.T, patience, "the Deployment is gone", func() string {
		_, err := w.east.Clientset().AppsV1().Deployments(w.below).Get(w.Context(), "early", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("it is there: %v", err)
	})
	w.account("late", nil)
	w.deploy("early", "late")
	w.down("early")
	framework.Eventually(w.T, patience, "its pods are somebody", func() string {
		_, err := w.as(w.secret("late", "token")).AuthenticationV1().SelfSubjectReviews().Create(w.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return problemOf(err)
	})
}

// saysNoNow: the next template has no token, though nothing else of it changes.
func (w *talking) saysNoNow() {
	_, err := w.clients.Kube.AppsV1().Deployments("default").Patch(w.in, "early", types.MergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"automountServiceAccountToken":false}}}}`), metav1.PatchOptions{})
	must(w.T, err)
	framework.Eventually(w.T, patience, "its pods have no token", func() string {
		d := w.down("early")
		if pods := d.Spec.Template.Spec; len(pods.Volumes) > 0 || len(pods.Containers[0].Env) > 0 {
			return fmt.Sprintf("they have %v and %v", pods.Volumes, pods.Containers[0].Env)
		}
		return ""
	})
}

// foreignNamespace: nobody else has a token of the workspace; rests looks at it later.
func (w *talking) foreignNamespace() {
	name := kinds.DownstreamNamespace(w.cluster, "theirs", false)
	_, err := w.east.Clientset().CoreV1().Namespaces().Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(w.T, err)
	w.foreign = name
	_, err = w.clients.Kube.CoreV1().Namespaces().Create(w.in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	must(w.T, err)
	w.deployIn("theirs", "web", "default")
	framework.Eventually(w.T, patience, "the Deployment is refused", func() string {
		d, err := w.clients.Kube.AppsV1().Deployments("theirs").Get(w.in, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Reason == "NameConflict" }) {
			return fmt.Sprintf("%+v", d.Status.Conditions)
		}
		return ""
	})
}

// rests: what is as it should be is left alone, however long.
func (w *talking) rests() {
	versions := func() map[string]string {
		all := map[string]string{}
		secrets, err := w.east.Clientset().CoreV1().Secrets(w.below).List(w.Context(), metav1.ListOptions{})
		must(w.T, err)
		for _, s := range secrets.Items {
			all["secret "+s.Name] = s.ResourceVersion
		}
		others, err := w.east.Clientset().CoreV1().Secrets(w.foreign).List(w.Context(), metav1.ListOptions{})
		must(w.T, err)
		if len(others.Items) > 0 {
			w.Errorf("somebody else's namespace has %d Secrets", len(others.Items))
		}
		deployments, err := w.east.Clientset().AppsV1().Deployments(w.below).List(w.Context(), metav1.ListOptions{})
		must(w.T, err)
		for _, d := range deployments.Items {
			all["deployment "+d.Name] = fmt.Sprint(d.Generation)
		}
		return all
	}
	before := versions()
	if before["secret atoll-token-robot"] == "" || before["deployment web"] == "" {
		w.Fatalf("the physical cluster has %v", before)
	}
	time.Sleep(5 * time.Second) // the test is that nothing happens in this time
	if diff := cmp.Diff(before, versions()); diff != "" {
		w.Errorf("5 s of quiet (-before +after):\n%s", diff)
	}
}
