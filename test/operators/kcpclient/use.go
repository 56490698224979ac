package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	kcpclientset "github.com/kcp-dev/sdk/client/clientset/versioned"
	tenancyclient "github.com/kcp-dev/sdk/client/clientset/versioned/typed/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// use makes a workspace, is told by a watch that it is ready, finds it by its phase, enters it by its path and by the name of its
// logical cluster, and deletes it. The kubeconfig's address is that of the server, with or without a workspace.
func use(ctx context.Context, kubeconfig, name string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	server, _, _ := strings.Cut(config.Host, "/clusters/")
	in := func(path logicalcluster.Path) (*kcpclientset.Clientset, error) {
		there := rest.CopyConfig(config)
		there.Host = server + path.RequestPath()
		return kcpclientset.NewForConfig(there)
	}
	root := logicalcluster.NewPath("root")
	clients, err := in(root)
	if err != nil {
		return err
	}
	workspaces := clients.TenancyV1alpha1().Workspaces()
	made, err := workspaces.Create(ctx, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create workspace %q: %w", name, err)
	}
	if _, err := workspaces.Create(ctx, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create workspace %q again: %w, want that it is there already", name, err)
	}
	ready, err := until(ctx, workspaces, made)
	if err != nil {
		return err
	}
	for _, condition := range []conditionsv1alpha1.ConditionType{tenancyv1alpha1.WorkspaceScheduled, tenancyv1alpha1.WorkspaceInitialized} {
		if !conditions.IsTrue(ready, condition) {
			return fmt.Errorf("its condition %s is not true: %+v", condition, ready.Status.Conditions)
		}
	}
	var owner authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(ready.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]), &owner); err != nil || owner.Username == "" {
		return fmt.Errorf("its owner is %q: %w", ready.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey], err)
	}
	for _, path := range []logicalcluster.Path{root.Join(name), logicalcluster.Name(ready.Spec.Cluster).Path()} {
		inside, err := in(path)
		if err != nil {
			return err
		}
		lc, err := inside.CoreV1alpha1().LogicalClusters().Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("enter %q: %w", path, err)
		}
		if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseReady || lc.Spec.Owner == nil || lc.Spec.Owner.UID != ready.UID || logicalcluster.From(lc).String() != ready.Spec.Cluster {
			return fmt.Errorf("%q is %+v", path, lc)
		}
	}
	// A controller that writes what it has read, with the fields that it knows.
	ready.Labels["by"] = "kcp"
	if ready, err = workspaces.Update(ctx, ready, metav1.UpdateOptions{}); err != nil || ready.Labels["by"] != "kcp" || ready.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != "Ready" {
		return fmt.Errorf("update workspace %q: %w, %+v", name, err, ready)
	}
	nowhere, err := in(root.Join("nothere"))
	if err != nil {
		return err
	}
	if _, err := nowhere.TenancyV1alpha1().Workspaces().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("a workspace that is not there: %w, want that it is none, or a refusal", err)
	}
	if err := workspaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete workspace %q: %w", name, err)
	}
	fmt.Printf("%s of %s, %s, was at %s\n", name, owner.Username, ready.Status.Phase, ready.Spec.URL)
	return nil
}

// until returns a workspace once it is ready, by a watch of those that are.
func until(ctx context.Context, workspaces tenancyclient.WorkspaceInterface, made *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	ready := string(corev1alpha1.LogicalClusterPhaseReady)
	w, err := workspaces.Watch(ctx, metav1.ListOptions{LabelSelector: tenancyv1alpha1.WorkspacePhaseLabel + "=" + ready, ResourceVersion: made.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch workspaces that are ready: %w", err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if got, ok := e.Object.(*tenancyv1alpha1.Workspace); !ok {
			return nil, fmt.Errorf("watch workspaces that are ready: %v", e)
		} else if got.UID == made.UID && string(got.Status.Phase) == ready {
			return got, nil
		}
	}
	return nil, fmt.Errorf("workspace %q is not told to be ready: %w", made.Name, ctx.Err())
}
