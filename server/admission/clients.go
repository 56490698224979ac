package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	nodeclient "k8s.io/client-go/kubernetes/typed/node/v1"
)

// clientset looks to a plugin like a client of its cluster's API. It answers what plugins ask where their informers may
// lag, from etcd and without a request; they pass contexts of their own making, which are not looked at. Any other method of
// the embedded nil interfaces panics.
type clientset struct {
	kubernetes.Interface
	scope
}

func (c clientset) CoreV1() coreclient.CoreV1Interface { return coreV1Client{scope: c.scope} }
func (c clientset) NodeV1() nodeclient.NodeV1Interface { return nodeV1Client{scope: c.scope} }

type coreV1Client struct {
	coreclient.CoreV1Interface
	scope
}

func (c coreV1Client) ServiceAccounts(namespace string) coreclient.ServiceAccountInterface {
	return serviceAccountClient{all: c.serviceAccounts(namespace)}
}

func (c coreV1Client) LimitRanges(namespace string) coreclient.LimitRangeInterface {
	return limitRangeClient{all: c.limitRanges(namespace)}
}

func (c coreV1Client) Namespaces() coreclient.NamespaceInterface {
	return namespaceClient{all: c.namespaces()}
}

type namespaceClient struct {
	coreclient.NamespaceInterface
	all lister[corev1.Namespace, *corev1.Namespace]
}

func (c namespaceClient) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return c.all.Get(name)
}

type serviceAccountClient struct {
	coreclient.ServiceAccountInterface
	all lister[corev1.ServiceAccount, *corev1.ServiceAccount]
}

func (c serviceAccountClient) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ServiceAccount, error) {
	return c.all.Get(name)
}

type limitRangeClient struct {
	coreclient.LimitRangeInterface
	all lister[corev1.LimitRange, *corev1.LimitRange]
}

func (c limitRangeClient) List(context.Context, metav1.ListOptions) (*corev1.LimitRangeList, error) {
	found, err := c.all.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	list := &corev1.LimitRangeList{}
	for _, limits := range found {
		list.Items = append(list.Items, *limits)
	}
	return list, nil
}

type nodeV1Client struct {
	nodeclient.NodeV1Interface
	scope
}

func (c nodeV1Client) RuntimeClasses() nodeclient.RuntimeClassInterface {
	return runtimeClassClient{all: c.runtimeClasses()}
}

type runtimeClassClient struct {
	nodeclient.RuntimeClassInterface
	all lister[nodev1.RuntimeClass, *nodev1.RuntimeClass]
}

func (c runtimeClassClient) Get(_ context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	return c.all.Get(name)
}
