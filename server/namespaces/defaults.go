package namespaces

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
)

const (
	defaultServiceAccount = "default"
	rootCAConfigMap       = "kube-root-ca.crt"
	rootCAKey             = "ca.crt"

	// rootCAHashAnnotation tells from the metadata alone, which is all that is listed at start, that a ConfigMap holds
	// the authorities of today.
	rootCAHashAnnotation = "atoll.dev/root-ca"
)

// rootCA is what the ConfigMaps should hold.
type rootCA struct{ pem, hash string }

func newRootCA(pem []byte) rootCA {
	sum := sha256.Sum256(pem)
	return rootCA{pem: string(pem), hash: hex.EncodeToString(sum[:8])}
}

// in says whether a ConfigMap holds the authorities and nothing else.
func (r rootCA) in(cm *corev1.ConfigMap) bool {
	return len(cm.Data) == 1 && cm.Data[rootCAKey] == r.pem && len(cm.BinaryData) == 0 && cm.Annotations[rootCAHashAnnotation] == r.hash
}

// put writes the authorities into a ConfigMap, and says whether that changed anything.
func (r rootCA) put(cm *corev1.ConfigMap) bool {
	if r.in(cm) {
		return false
	}
	cm.Data, cm.BinaryData = map[string]string{rootCAKey: r.pem}, nil
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, rootCAHashAnnotation, r.hash)
	return true
}

// wantsDefaults says whether a namespace gets default objects: those of workspaces do while neither is being deleted. A
// logical cluster that is not known yet brings its namespaces here once it is.
func wantsDefaults(ns *corev1.Namespace, cluster *corev1alpha1.LogicalCluster) bool {
	return ns != nil && ns.DeletionTimestamp == nil && cluster != nil &&
		cluster.Spec.Use != corev1alpha1.LogicalClusterUseMirror &&
		!cluster.Status.Phase.Ends()
}

func (c *Controller) ensureDefaults(ctx context.Context, key client.Key) (time.Duration, error) {
	ns, _ := c.informers.Namespaces.Get(key)
	cluster, _ := c.informers.LogicalClusters.Get(client.Key{Cluster: key.Cluster, Name: corev1alpha1.LogicalClusterName})
	if !wantsDefaults(ns, cluster) {
		return 0, nil
	}
	if have, err := c.hasDefaults(ctx, key); have || err != nil {
		return 0, err
	}
	ctx = client.In(ctx, key.Cluster)
	err := c.ensureServiceAccount(ctx, key.Name)
	if err == nil {
		err = c.ensureRootCA(ctx, key.Name)
	}
	switch {
	case err == nil:
		return 0, nil
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return 0, nil // the namespace is going, and the informer will say so
	}
	return 0, fmt.Errorf("default objects of namespace %q in logical cluster %q: %w", key.Name, key.Cluster, err)
}

// Content returns what every namespace of a workspace holds, for who makes both together.
func (c *Controller) Content(namespace string) []ctrlclient.Object {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: defaultServiceAccount}}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rootCAConfigMap}}
	c.rootCA.put(cm)
	return []ctrlclient.Object{account, cm}
}

// hasDefaults says whether a namespace has its default objects as they should be. What the watch cache shows may be gone
// since, or of an earlier namespace of that name; then that deletion brings the namespace here again. What it does not show
// may only be on its way, so that etcd is asked.
func (c *Controller) hasDefaults(ctx context.Context, key client.Key) (bool, error) {
	if c.read == nil {
		return false, nil
	}
	read := func(name string, into ctrlclient.Object) (found bool, err error) {
		for _, version := range []string{"0", ""} {
			if found, err = c.read(ctx, key.Cluster, key.Name, name, version, into); found || err != nil {
				break
			}
		}
		return found, err
	}
	if found, err := read(defaultServiceAccount, &corev1.ServiceAccount{}); !found || err != nil {
		return false, err
	}
	cm := &corev1.ConfigMap{}
	if found, err := read(rootCAConfigMap, cm); !found || err != nil {
		return false, err
	}
	return c.rootCA.in(cm), nil
}

func (c *Controller) ensureServiceAccount(ctx context.Context, namespace string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: defaultServiceAccount}}
	_, err := c.clients.Kube.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (c *Controller) ensureRootCA(ctx context.Context, namespace string) error {
	configMaps := c.clients.Kube.CoreV1().ConfigMaps(namespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rootCAConfigMap}}
	c.rootCA.put(cm)
	_, err := configMaps.Create(ctx, cm, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if cm, err = configMaps.Get(ctx, rootCAConfigMap, metav1.GetOptions{}); err != nil || !c.rootCA.put(cm) {
		return err
	}
	_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{})
	return err
}
