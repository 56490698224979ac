package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/version"
	"k8s.io/kubernetes/pkg/features"
)

// pollInterval between looks at the state of a start.
const pollInterval = 50 * time.Millisecond

// kubeletAddress is the type of the address of a node at which the apiserver asks for logs: kubeletHost.
const (
	kubeletAddress = corev1.NodeInternalDNS
	kubeletHost    = "localhost"
)

// nodeFeature is what nodes declare that their kubelet has: see serveWebSocket.
const nodeFeature = string(features.ExtendWebSocketsToKubelet)

func deleteNodeLeases(ctx context.Context, client kubernetes.Interface) error {
	err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the node leases of the last run: %w", err)
	}
	return nil
}

// allowDNS lets CoreDNS read what it answers with, and nothing else: all pods talk to it.
func allowDNS(ctx context.Context, client kubernetes.Interface) error {
	read := []string{"list", "watch"}
	_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: dnsUser},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"namespaces", "services"}, Verbs: read},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the role of CoreDNS: %w", err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: dnsUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: dnsUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: dnsUser}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bind the role of CoreDNS: %w", err)
	}
	return nil
}

// createNodes makes the nodes that are missing, and has those that are here lead the apiserver to the port of the kubelet for their logs, also those of a
// run that had more. kwok plays the rest of their kubelets from then on. Nodes that others added are theirs: their logs and commands are not led here.
func createNodes(ctx context.Context, client kubernetes.Interface, o *options, kubeletPort int32) error {
	for i := range o.nodes {
		node := newNode(o.name, i)
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kubeletAddress, Address: kubeletHost})
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
		node.Status.DeclaredFeatures = []string{nodeFeature}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("create node %q: %w", node.Name, err)
		}
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes of the last run: %w", err)
	}
	at := fmt.Appendf(nil, `{"status":{"addresses":[{"type":%q,"address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}},"declaredFeatures":[%q]}}`,
		kubeletAddress, kubeletHost, kubeletPort, nodeFeature)
	for _, node := range nodes.Items {
		if !ofCluster(o.name, node.Name) || node.Status.DaemonEndpoints.KubeletEndpoint.Port == kubeletPort {
			continue
		}
		if _, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, at, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("lead node %q to the kubelet of this run: %w", node.Name, err)
		}
	}
	return nil
}

// nodeName is the name of node i of a cluster.
func nodeName(cluster string, i int) string { return fmt.Sprintf("%s-node-%d", cluster, i) }

// ofCluster reports whether a node has a name that nodeName gives.
func ofCluster(cluster, node string) bool {
	i, err := strconv.Atoi(strings.TrimPrefix(node, cluster+"-node-"))
	return err == nil && i >= 0 && node == nodeName(cluster, i)
}

// newNode returns node i of a cluster: NAME-node-I in zone NAME-a, -b or -c of region NAME.
// A create keeps the status too, so the node has its capacity from the start.
func newNode(cluster string, i int) *corev1.Node {
	name := nodeName(cluster, i)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("256Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("512Gi"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:       name,
				corev1.LabelOSStable:       "linux",
				corev1.LabelArchStable:     "amd64",
				corev1.LabelTopologyRegion: cluster,
				corev1.LabelTopologyZone:   fmt.Sprintf("%s-%c", cluster, 'a'+i%3),
			},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: name},
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)},
			},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem:         "linux",
				Architecture:            "amd64",
				KubeletVersion:          version.Get().GitVersion,
				ContainerRuntimeVersion: "kwok://simulated",
			},
		},
	}
}

// waitForAPI waits until /readyz says ok.
func waitForAPI(ctx context.Context, client kubernetes.Interface) error {
	return poll(ctx, "the apiserver", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// waitForPods waits until pods can be created in the default namespace and scheduled to every node.
func waitForPods(ctx context.Context, client kubernetes.Interface, o *options) error {
	return poll(ctx, "pods to be possible", func(ctx context.Context) error {
		if _, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var missing []error
		if len(nodes.Items) < o.nodes {
			missing = append(missing, fmt.Errorf("%d of %d nodes exist", len(nodes.Items), o.nodes))
		}
		for i := range nodes.Items {
			missing = append(missing, usable(&nodes.Items[i]))
		}
		// Without its lease a node is Ready by the word of the last run only.
		leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(leases.Items) < o.nodes {
			missing = append(missing, fmt.Errorf("%d of %d nodes have a lease", len(leases.Items), o.nodes))
		}
		return errors.Join(missing...)
	})
}

// usable returns why no pod can be scheduled to a node, nil if one can.
func usable(node *corev1.Node) error {
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady || c.Status != corev1.ConditionTrue {
			continue
		}
		if node.Spec.PodCIDR == "" {
			return fmt.Errorf("node %q has no pod CIDR", node.Name)
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
				return fmt.Errorf("node %q has taint %s", node.Name, taint.Key)
			}
		}
		return nil
	}
	return fmt.Errorf("node %q is not Ready", node.Name)
}

// poll calls check until it returns nil. Its error is the last one seen.
func poll(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); err != nil {
			if ctx.Err() == nil {
				last = err
			}
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), last))
	}
	return nil
}
