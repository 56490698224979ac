package crash

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authuser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/workspaces"
)

// scenario is what a user does, one step after the other; each waits until all of the one before it has come about.
type scenario struct {
	name string
	// own scenarios make their workspaces themselves; the others have one when they begin.
	own   bool
	steps []step
	// others says that the app is a ReplicaSet, a ReplicationController, a DaemonSet, a StatefulSet and a Job, with what these need, and no Deployment.
	others bool
	// house says that what the controllers of the house write is looked at, too, and come how much of it there is in the end, by step.
	house bool
	come  map[string]tally
	// twice names, by step, objects of which every controller that watches them gets two changes to see in it, as "hub deployments/web": who is
	// shown the last state only has missed one, however fast or slow all are.
	twice map[string][]string
}

// step is one thing that a user does.
type step struct {
	name string
	do   func(*user) error
	// runs is how many replicas run then, by physical cluster.
	runs map[string]int32
	// deletes are the deletes that the step asks of physical clusters, as "east services/web", each once; and of the controllers of the
	// house, as "hub jobs/once", once at most. They may delete all that is in a namespace with which they are asked to.
	deletes []string
}

// user is somebody with a workspace.
type user struct {
	*run
	// path has the names of the workspaces from root down, without root. The last one holds the app.
	path []string
	// owners of the app.
	owners []metav1.OwnerReference
	// keys of the certificates of a cluster that is synced from outside, by request, in PEM. It is nil before that is registered.
	keys map[string][]byte
	// key is that of who asks for a certificate of the workspace, in PEM, and known who is somebody by which certificate.
	key   []byte
	known map[string]string
}

const app = "web"

// all are the deletes that take the app out of a cluster, but for its namespace, which is judged by what is in it.
func all(cluster string) (deletes []string) {
	for _, resource := range []string{"deployments", "services", "configmaps", "secrets"} {
		deletes = append(deletes, cluster+" "+resource+"/"+app)
	}
	return deletes
}

func east(n int32) map[string]int32 { return map[string]int32{"east": n} }
func west(n int32) map[string]int32 { return map[string]int32{"west": n} }

var scenarios = []scenario{
	{
		name: "once",
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(1)) }, east(1), nil},
			{"delete", (*user).delete, nil, all("east")},
		},
	},
	{
		name: "change",
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(1)) }, east(1), nil},
			{"change", func(u *user) error { return u.change(2, "hi") }, east(2), nil},
			{"delete", (*user).delete, nil, all("east")},
		},
	},
	{
		name: "move",
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(2)) }, east(2), nil},
			{"divide", func(u *user) error { return u.place("east,west") }, map[string]int32{"east": 1, "west": 1}, nil},
			{"move", func(u *user) error { return u.place("west") }, west(2), all("east")},
			{"delete", (*user).delete, nil, all("west")},
		},
	},
	{
		name: "life", twice: map[string][]string{"scale": {"hub deployments/" + app}},
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(2)) }, east(2), nil},
			{"scale", func(u *user) error {
				return errors.Join(u.change(5, "hello"), u.sunkIn(5), u.change(3, "hi"), u.sunkIn(3))
			}, east(3), nil},
			{"divide", func(u *user) error { return u.place("east,west") }, map[string]int32{"east": 2, "west": 1}, nil},
			{"move", func(u *user) error { return u.place("west") }, west(3), all("east")},
			{"recreate", func(u *user) error { return errors.Join(u.delete(), u.apply(2)) }, west(2), all("west")},
			{"delete", (*user).delete, nil, all("west")},
		},
	},
	{
		name: "owned",
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.own("former", "release"), u.apply(1)) }, east(1), nil},
			{"orphan", func(u *user) error { return u.disown("former", metav1.DeletePropagationOrphan) }, east(1), nil},
			{"delete", func(u *user) error { return u.disown("release", metav1.DeletePropagationForeground) }, nil, all("east")},
		},
	},
	{
		name: "others", others: true,
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.make(others(false))) }, east(1), nil},
			{"delete", func(u *user) error { return errors.Join(u.endPod("east", app+"-0"), u.deleteOthers()) }, nil, allOthers("east")},
		},
	},
	{
		// A Job that has begun would not move.
		name: "others move", others: true,
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.make(others(true))) }, east(1), nil},
			{"move", func(u *user) error { return u.place("west") }, west(1), allOthers("east")},
			{"resume", (*user).resume, west(1), nil},
			{"delete", (*user).deleteOthers, nil, allOthers("west")},
		},
	},
	{
		name: "bare tree", own: true,
		steps: []step{
			{"create", func(u *user) error { return u.create("team") }, nil, nil},
			{"create below", func(u *user) error { return u.create("shop") }, nil, nil},
			{"fill", func(u *user) error { return u.clients.Objects.Create(u.home(), objects(0, "hello")[0]) }, nil, nil},
			{"delete", func(u *user) error { return u.remove() }, nil, nil},
		},
	},
	{
		name: "tree", own: true,
		steps: []step{
			{"create", func(u *user) error { return u.create("team") }, nil, nil},
			{"create below", func(u *user) error { return u.create("shop") }, nil, nil},
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(1)) }, east(1), nil},
			{"delete", func(u *user) error { return u.remove() }, nil, all("east")},
		},
	},
	{
		name: "regret", own: true, twice: map[string][]string{"regret": {"hub workspaces/regretted"}},
		steps: []step{
			{"create", func(u *user) error { return u.create("team") }, nil, nil},
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.apply(1)) }, east(1), nil},
			{"regret", (*user).regret, east(1), nil},
			{"delete", func(u *user) error { return u.remove() }, nil, all("east")},
		},
	},
	{
		name: "pull", twice: map[string][]string{"replace": {"hub secrets/" + pulled}},
		steps: []step{
			{"add", (*user).pull, nil, nil},
			{"renew", (*user).renew, nil, nil},
			{"replace", (*user).replaceToken, nil, nil},
			{"steal", (*user).steal, nil, nil},
			{"remove", (*user).removePulled, nil, nil},
		},
	},
	{
		name: "house", house: true,
		twice: map[string][]string{
			"furnish": {
				"hub namespaces/" + extra, "hub clusterroles/" + part, "hub certificatesigningrequests/" + person, "hub cronjobs/" + report,
				"hub poddisruptionbudgets/" + app, "hub services/" + app, "hub jobs/" + once, "hub resourcequotas/" + app,
			},
			"later": {"hub clusterroles/" + part, "hub horizontalpodautoscalers/" + app},
		},
		come: map[string]tally{
			"furnish": {resources: 1, signed: 1, refused: 1, given: 3, jobs: 1, ended: 1, usedJobs: 1, usedConfigMaps: 2, expected: 1, healthy: 1, ready: 1, addresses: 1},
			"later":   {resources: 3, jobs: 1, ended: 1, ran: true, usedJobs: 1, usedConfigMaps: 2, expected: 2, healthy: 2, ready: 2, addresses: 2, scaled: 2},
			"delete":  {usedConfigMaps: 1},
		},
		steps: []step{
			{"furnish", (*user).furnish, east(1), nil},
			{"later", (*user).halfAYear, east(2), []string{
				"east jobs/" + once, "hub jobs/" + once, "hub namespaces/" + extra,
				"hub certificatesigningrequests/" + person, "hub certificatesigningrequests/" + impostor,
			}},
			{"delete", (*user).strip, nil, append(all("east"), "east jobs/"+nameOfRun(), "hub endpoints/"+app)},
		},
	},
	{
		// Without Jobs: one that has begun would not move.
		name: "house moves", house: true,
		come: map[string]tally{
			"apply":  {expected: 2, healthy: 2, ready: 2, addresses: 2},
			"move":   {expected: 2, healthy: 2, ready: 2, addresses: 2},
			"delete": {},
		},
		steps: []step{
			{"apply", func(u *user) error { return errors.Join(u.place("east"), u.twice(budget(), aBudget), u.apply(2)) }, east(2), nil},
			{"move", func(u *user) error { return u.place("west") }, west(2), all("east")},
			{"delete", func(u *user) error { return errors.Join(u.drop(budget()), u.delete()) }, nil, append(all("west"), "hub endpoints/"+app)},
		},
	},
}

func scenarioOf(name string) scenario {
	for _, s := range scenarios {
		if s.name == name {
			return s
		}
	}
	panic("no scenario " + name)
}

// place annotates the namespace default.
func (u *user) place(clusters string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, placementv1alpha1.ClustersAnnotation, clusters)
	_, err := u.clients.Kube.CoreV1().Namespaces().Patch(u.home(), metav1.NamespaceDefault, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func appMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: app, Namespace: metav1.NamespaceDefault, Labels: map[string]string{"app": app}}
}

// objects are the app, in the order of deletion and creation.
func objects(replicas int32, greeting string) []ctrlclient.Object {
	labels := map[string]string{"app": app}
	return []ctrlclient.Object{
		&corev1.ConfigMap{ObjectMeta: appMeta(), Data: map[string]string{"greeting": greeting}},
		&corev1.Secret{ObjectMeta: appMeta(), Data: map[string][]byte{"key": []byte("opensesame")}},
		&corev1.Service{ObjectMeta: appMeta(), Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}},
		&appsv1.Deployment{ObjectMeta: appMeta(), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{
						Name: "web", Image: "registry.example/web:1",
						EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: app}}}},
					}},
					Volumes: []corev1.Volume{{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: app}}}},
				},
			},
		}},
	}
}

// others are the app without a Deployment.
func others(suspended bool) []ctrlclient.Object {
	labels, all := map[string]string{"app": app}, objects(0, "hello")
	settings, service, pods := all[0], all[2], all[3].(*appsv1.Deployment).Spec.Template
	pods.Spec.Volumes = nil // no Secret
	selector := &metav1.LabelSelector{MatchLabels: labels}
	db, once := *pods.DeepCopy(), *pods.DeepCopy()
	db.Spec.Containers[0].Name = "db" // or its revision would have the name of the DaemonSet's
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	return []ctrlclient.Object{
		settings, service,
		&appsv1.ReplicaSet{ObjectMeta: appMeta(), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1), Selector: selector, Template: pods}},
		&corev1.ReplicationController{ObjectMeta: appMeta(), Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](1), Template: &pods}},
		&appsv1.DaemonSet{ObjectMeta: appMeta(), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pods}},
		&appsv1.StatefulSet{ObjectMeta: appMeta(), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1), ServiceName: app, Selector: selector, Template: db}},
		&batchv1.Job{ObjectMeta: appMeta(), Spec: batchv1.JobSpec{Suspend: &suspended, Template: once}},
	}
}

// allOthers are the deletes that take them out of a cluster.
func allOthers(cluster string) (deletes []string) {
	for _, resource := range []string{"replicasets", "replicationcontrollers", "daemonsets", "statefulsets", "jobs", "services", "configmaps"} {
		deletes = append(deletes, cluster+" "+resource+"/"+app)
	}
	return deletes
}

func (u *user) deleteOthers() error {
	for _, o := range others(false) {
		if err := u.clients.Objects.Delete(u.home(), o, ctrlclient.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return fmt.Errorf("delete %T: %w", o, err)
		}
	}
	return nil
}

// endPod deletes a pod of the workspace, and waits until its end has begun below: else it may end there with what made it, and the syncer
// delete none. What the server itself deletes is gone from the workspace at once, so it is somebody else who does.
func (u *user) endPod(physical, name string) error {
	below := u.fleet[physical].dynamic.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(u.space())
	pod, err := below.Get(u.ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read pod %s of %s: %w", name, physical, err)
	}
	somebody := rest.CopyConfig(u.server.LoopbackConfig())
	somebody.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{authuser.SystemPrivilegedGroup}}
	as, err := client.New(somebody)
	if err != nil {
		return fmt.Errorf("be somebody: %w", err)
	}
	if err := as.Kube.CoreV1().Pods(metav1.NamespaceDefault).Delete(u.home(), name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	eventually(u.t, "pod "+name+" ends in "+physical, func() string {
		now, err := below.Get(u.ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		case now.GetUID() == pod.GetUID() && now.GetDeletionTimestamp() == nil:
			return "it is not deleted"
		}
		return ""
	})
	return nil
}

func (u *user) resume() error {
	return u.clients.Objects.Patch(u.home(), &batchv1.Job{ObjectMeta: appMeta()}, ctrlclient.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`)))
}

func (u *user) apply(replicas int32) error { return u.make(objects(replicas, "hello")) }

func (u *user) make(objects []ctrlclient.Object) error {
	for _, o := range objects {
		o.SetOwnerReferences(u.owners)
		if err := u.clients.Objects.Create(u.home(), o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return nil
}

// own makes what will own the app.
func (u *user) own(names ...string) error {
	for _, name := range names {
		o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
		if err := u.clients.Objects.Create(u.home(), o); err != nil {
			return fmt.Errorf("create the owner %s: %w", name, err)
		}
		u.owners = append(u.owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: name, UID: o.UID, BlockOwnerDeletion: ptr.To(true)})
	}
	return nil
}

// disown deletes one of the owners.
func (u *user) disown(name string, how metav1.DeletionPropagation) error {
	o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	return u.clients.Objects.Delete(u.home(), o, ctrlclient.PropagationPolicy(how))
}

func (u *user) change(replicas int32, greeting string) error {
	for o, patch := range map[ctrlclient.Object]string{
		&appsv1.Deployment{ObjectMeta: appMeta()}: fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas),
		&corev1.ConfigMap{ObjectMeta: appMeta()}:  fmt.Sprintf(`{"data":{"greeting":%q}}`, greeting),
	} {
		if err := u.clients.Objects.Patch(u.home(), o, ctrlclient.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			return fmt.Errorf("patch %T: %w", o, err)
		}
	}
	return nil
}

// sunkIn waits until the splitter has passed on that there shall be so many replicas: the next change is another one to the syncer,
// too, and what the syncer is not shown has happened before it sees again, however slow the splitter is. A splitter that sees nothing is not waited for.
func (u *user) sunkIn(replicas int32) error {
	if u.sees("splitter") {
		ours := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + u.clusters[len(u.clusters)-1]}
		eventually(u.t, fmt.Sprintf("there is a leaf with %d replicas", replicas), func() string {
			leaves, err := u.clients.Kube.AppsV1().Deployments("").List(client.In(u.ctx, u.mirror("east")), ours)
			if err != nil {
				return err.Error()
			}
			if len(leaves.Items) != 1 || *leaves.Items[0].Spec.Replicas != replicas {
				return fmt.Sprintf("%+v", leaves.Items)
			}
			return ""
		})
	}
	return nil
}

func (u *user) delete() error {
	for _, o := range objects(0, "") {
		if err := u.clients.Objects.Delete(u.home(), o); err != nil {
			return fmt.Errorf("delete %T: %w", o, err)
		}
	}
	return nil
}

// create makes a workspace below the last one, the first in root.
func (u *user) create(name string) error {
	in := client.In(u.ctx, workspaces.Root)
	if len(u.path) > 0 {
		in = u.home()
	} else {
		name = fmt.Sprintf("%s-%d", name, u.number) // names in root are used by each run
	}
	u.path = append(u.path, name)
	return u.clients.Objects.Create(in, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// regret makes a workspace below the last one and deletes it at once.
func (u *user) regret() error {
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "regretted"}}
	return errors.Join(u.clients.Objects.Create(u.home(), ws), u.clients.Objects.Delete(u.home(), ws))
}

// ready waits for the workspaces that were made, and learns their logical clusters.
func (u *user) ready() {
	u.t.Helper()
	for i := len(u.clusters); i < len(u.path); i++ {
		in := client.In(u.ctx, workspaces.Root)
		if i > 0 {
			in = u.home()
		}
		ws := &tenancyv1alpha1.Workspace{}
		eventually(u.t, "workspace root:"+strings.Join(u.path[:i+1], ":")+" is Ready", func() string {
			must(u.t, u.clients.Objects.Get(in, types.NamespacedName{Name: u.path[i]}, ws))
			if ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
				return fmt.Sprintf("%+v", ws.Status)
			}
			return ""
		})
		u.clusters = append(u.clusters, ws.Spec.Cluster)
	}
}

// remove deletes the first of the user's workspaces.
func (u *user) remove() error {
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: u.path[0]}}
	return ctrlclient.IgnoreNotFound(u.clients.Objects.Delete(client.In(u.ctx, workspaces.Root), ws))
}

// removed says what is left of the first of the user's workspaces.
func (u *user) removed() string {
	ws := &tenancyv1alpha1.Workspace{}
	err := u.clients.Objects.Get(client.In(u.ctx, workspaces.Root), types.NamespacedName{Name: u.path[0]}, ws)
	switch {
	case apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%+v", ws.Status)
}
