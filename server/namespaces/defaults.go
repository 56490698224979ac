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

// put writes the authorities into a ConfigMap, and says whether that changed anything.
func (r rootCA) put(cm *corev1.ConfigMap) bool {
	if len(cm.Data) == 1 && cm.Data[rootCAKey] == r.pem && len(cm.BinaryData) == 0 && cm.Annotations[rootCAHashAnnotation] == r.hash {
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
		cluster.Status.Phase != corev1alpha1.LogicalClusterPhaseTerminating
}

func (c *Controller) ensureDefaults(ctx context.Context, key client.Key) (time.Duration, error) {
	ns, _ := c.informers.Namespaces.Get(key)
	cluster, _ := c.informers.LogicalClusters.Get(client.Key{Cluster: key.Cluster, Name: corev1alpha1.LogicalClusterName})
	if !wantsDefaults(ns, cluster) {
		return 0, nil
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
