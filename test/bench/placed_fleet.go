package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// placedPatience bounds every wait for what takes milliseconds, or seconds where there are a thousand.
const placedPatience = 3 * time.Minute

// placedFleet is an Atoll with physical clusters, whose syncers run in the server.
type placedFleet struct {
	*framework.Atoll
	env        *Env
	clients    *client.Clients
	workspaces *Workspaces
	physical   map[string]*framework.Physical
}

// startFleet starts an Atoll and physical clusters of so many nodes.
func startFleet(ctx context.Context, env *Env, nodes int, names ...string) (*placedFleet, error) {
	f := &placedFleet{Atoll: env.StartAtoll(), env: env, physical: map[string]*framework.Physical{}}
	f.clients = f.Clients()
	for _, name := range names {
		env.Progress("start physical cluster %s", name)
		f.physical[name] = env.StartPhysical(name, framework.PhysicalNodes(nodes), framework.PhysicalFsync())
		f.MustRun("cluster", "add", name, "--kubeconfig", f.physical[name].Kubeconfig)
	}
	var err error
	f.workspaces, err = NewWorkspaces(ctx, env, f.clients)
	return f, err
}

// workspace makes a workspace whose namespace default is placed in these clusters.
func (f *placedFleet) workspace(ctx context.Context, name, clusters string) (logicalcluster.Name, error) {
	cluster, err := f.workspaces.Create(ctx, name)
	if err != nil {
		return "", err
	}
	return cluster, annotate(ctx, f.clients, cluster, map[string]string{placementv1alpha1.ClustersAnnotation: clusters})
}

// annotate annotates the namespace default.
func annotate(ctx context.Context, clients *client.Clients, cluster logicalcluster.Name, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = clients.Kube.CoreV1().Namespaces().Patch(client.In(ctx, cluster), "default", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// placedDeployment has one small container.
func placedDeployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
			},
		},
	}
}

// sightings are when a watch first showed something, by what.
type sightings struct {
	mu      sync.Mutex
	at      map[string]time.Time
	waiting map[string]chan struct{} // closed when seen
	ended   error                    // a watch has, and could not be opened again
}

func newSightings() *sightings {
	return &sightings{at: map[string]time.Time{}, waiting: map[string]chan struct{}{}}
}

// source lists and watches what is followed.
type source struct {
	list  func(ctx context.Context) (runtime.Object, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// keys of an object that is there.
	keys func(obj runtime.Object) []string
}

// follow notes what there is from now on until the scenario ends. A server ends the watch of who is slow to read, and a
// busy machine makes us slow: then it lists and watches again, as any client does, and what it missed counts as seen late.
func (s *sightings) follow(ctx context.Context, env *Env, from source) error {
	opened, err := s.open(ctx, from)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	env.Cleanup(func() { stop(); running.Wait() })
	running.Go(func() {
		for {
			s.read(ctx, opened, from.keys)
			opened.Stop()
			if ctx.Err() != nil {
				return
			}
			env.Progress("a watch has ended; it is opened again")
			if opened, err = s.open(ctx, from); err != nil {
				s.end(fmt.Errorf("a watch has ended: %w", err))
				return
			}
		}
	})
	return nil
}

// open notes what there is, and watches from there.
func (s *sightings) open(ctx context.Context, from source) (watch.Interface, error) {
	list, err := from.list(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		for _, key := range from.keys(obj) {
			s.see(key, now)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	return from.watch(ctx, metav1.ListOptions{ResourceVersion: of.GetResourceVersion()})
}

// read notes what a watch shows, until it or ctx ends.
func (s *sightings) read(ctx context.Context, opened watch.Interface, keys func(obj runtime.Object) []string) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-opened.ResultChan():
			if !ok {
				return
			}
			if e.Type != watch.Added && e.Type != watch.Modified {
				continue
			}
			now := time.Now()
			for _, key := range keys(e.Object) {
				s.see(key, now)
			}
		}
	}
}

func (s *sightings) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = err
	for key, c := range s.waiting {
		close(c)
		delete(s.waiting, key)
	}
}

func (s *sightings) see(key string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.at[key]; ok {
		return
	}
	s.at[key] = now
	if c, ok := s.waiting[key]; ok {
		close(c)
		delete(s.waiting, key)
	}
}

// forget makes the next sighting the first.
func (s *sightings) forget(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.at, key)
	}
}

// wait returns when key was seen first, as soon as it is.
func (s *sightings) wait(ctx context.Context, key string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, placedPatience)
	defer cancel()
	for {
		s.mu.Lock()
		at, seen := s.at[key]
		ended := s.ended
		c, ok := s.waiting[key]
		if !seen && ended == nil && !ok {
			c = make(chan struct{})
			s.waiting[key] = c
		}
		s.mu.Unlock()
		if seen {
			return at, nil
		}
		if ended != nil {
			return at, fmt.Errorf("wait for %s: %w", key, ended)
		}
		select {
		case <-c:
		case <-ctx.Done():
			return at, fmt.Errorf("wait for %s: %w", key, context.Cause(ctx))
		}
	}
}

// last waits for all keys and returns when the last of them was seen.
func (s *sightings) last(ctx context.Context, keys []string) (time.Time, error) {
	var last time.Time
	for _, key := range keys {
		at, err := s.wait(ctx, key)
		if err != nil {
			return last, err
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// ofWorkspace selects what belongs to a workspace in a mirror and in a physical cluster.
func ofWorkspace(cluster logicalcluster.Name) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + string(cluster)}
}

// watchDeployments follows Deployments of a namespace, or of all, in a workspace or below.
func (s *sightings) watchDeployments(ctx context.Context, env *Env, kube kubernetes.Interface, namespace string, o metav1.ListOptions, keys func(*appsv1.Deployment) []string) error {
	deployments := kube.AppsV1().Deployments(namespace)
	return s.follow(ctx, env, source{
		list: func(ctx context.Context) (runtime.Object, error) { return deployments.List(ctx, o) },
		watch: func(ctx context.Context, from metav1.ListOptions) (watch.Interface, error) {
			from.LabelSelector, from.FieldSelector = o.LabelSelector, o.FieldSelector
			return deployments.Watch(ctx, from)
		},
		keys: func(obj runtime.Object) []string {
			d, ok := obj.(*appsv1.Deployment)
			if !ok {
				return nil
			}
			return keys(d)
		},
	})
}

// since is how many milliseconds after t something was; 0 if it was before.
func since(t, seen time.Time) float64 { return max(0, Milliseconds(seen.Sub(t))) }
