package admission

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/informers/networking"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/informers/node"
	nodeinformers "k8s.io/client-go/informers/node/v1"
	"k8s.io/client-go/informers/scheduling"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1"
	"k8s.io/client-go/informers/storage"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	storednetworking "k8s.io/kubernetes/pkg/apis/networking"
	storedscheduling "k8s.io/kubernetes/pkg/apis/scheduling"
	storedstorage "k8s.io/kubernetes/pkg/apis/storage"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

// factory looks to a plugin like the informers of its cluster. Behind it are the stores' watch caches, which every logical
// cluster shares. It has what the plugins of chain.go ask for; anything else of the embedded nil interfaces panics, at the
// start of the server, since plugins take their listers when they are made.
type factory struct {
	informers.SharedInformerFactory
	scope
}

func (f factory) Core() core.Interface             { return coreInformers{scope: f.scope} }
func (f factory) Networking() networking.Interface { return networkingInformers{scope: f.scope} }
func (f factory) Node() node.Interface             { return nodeInformers{scope: f.scope} }
func (f factory) Scheduling() scheduling.Interface { return schedulingInformers{scope: f.scope} }
func (f factory) Storage() storage.Interface       { return storageInformers{scope: f.scope} }

// informer is the generated informer of a kind, of which only the lister is real.
type informer[L any] struct{ lister L }

func (i informer[L]) Lister() L                           { return i.lister }
func (i informer[L]) Informer() cache.SharedIndexInformer { return synced{} }

// synced: the server is not ready before the watch caches are, and a read waits for them.
type synced struct{ cache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

type coreInformers struct {
	core.Interface
	scope
}

type coreV1Informers struct {
	coreinformers.Interface
	scope
}

func (i coreInformers) V1() coreinformers.Interface { return coreV1Informers{scope: i.scope} }

func (i coreV1Informers) LimitRanges() coreinformers.LimitRangeInformer {
	return informer[corelisters.LimitRangeLister]{limitRanges{i.limitRanges("")}}
}

func (i coreV1Informers) ServiceAccounts() coreinformers.ServiceAccountInformer {
	return informer[corelisters.ServiceAccountLister]{serviceAccounts{i.serviceAccounts("")}}
}

func (i coreV1Informers) Namespaces() coreinformers.NamespaceInformer {
	return informer[corelisters.NamespaceLister]{i.namespaces()}
}

func (s scope) namespaces() lister[corev1.Namespace, *corev1.Namespace] {
	return lister[corev1.Namespace, *corev1.Namespace]{s, namespaces, ""}
}

func (s scope) limitRanges(namespace string) lister[corev1.LimitRange, *corev1.LimitRange] {
	return lister[corev1.LimitRange, *corev1.LimitRange]{s, corev1.Resource("limitranges"), namespace}
}

func (s scope) serviceAccounts(namespace string) lister[corev1.ServiceAccount, *corev1.ServiceAccount] {
	return lister[corev1.ServiceAccount, *corev1.ServiceAccount]{s, corev1.Resource("serviceaccounts"), namespace}
}

type limitRanges struct {
	lister[corev1.LimitRange, *corev1.LimitRange]
}

func (l limitRanges) LimitRanges(namespace string) corelisters.LimitRangeNamespaceLister {
	return recent{l.limitRanges(namespace)}
}

// recent lists what the watch cache holds: if that is nothing, LimitRanger asks the clientset.
type recent struct {
	lister[corev1.LimitRange, *corev1.LimitRange]
}

func (l recent) List(selector labels.Selector) ([]*corev1.LimitRange, error) {
	return l.list(selector, true, nil)
}

type serviceAccounts struct {
	lister[corev1.ServiceAccount, *corev1.ServiceAccount]
}

func (l serviceAccounts) ServiceAccounts(namespace string) corelisters.ServiceAccountNamespaceLister {
	return l.serviceAccounts(namespace)
}

type networkingInformers struct {
	networking.Interface
	scope
}

type networkingV1Informers struct {
	networkinginformers.Interface
	scope
}

func (i networkingInformers) V1() networkinginformers.Interface {
	return networkingV1Informers{scope: i.scope}
}

func (i networkingV1Informers) IngressClasses() networkinginformers.IngressClassInformer {
	return informer[networkinglisters.IngressClassLister]{defaults[networkingv1.IngressClass, *networkingv1.IngressClass]{
		lister[networkingv1.IngressClass, *networkingv1.IngressClass]{i.scope, networkingv1.Resource("ingressclasses"), ""}, isDefaultIngressClass,
	}}
}

type nodeInformers struct {
	node.Interface
	scope
}

type nodeV1Informers struct {
	nodeinformers.Interface
	scope
}

func (i nodeInformers) V1() nodeinformers.Interface { return nodeV1Informers{scope: i.scope} }

func (i nodeV1Informers) RuntimeClasses() nodeinformers.RuntimeClassInformer {
	return informer[nodelisters.RuntimeClassLister]{i.runtimeClasses()}
}

func (s scope) runtimeClasses() lister[nodev1.RuntimeClass, *nodev1.RuntimeClass] {
	return lister[nodev1.RuntimeClass, *nodev1.RuntimeClass]{s, schema.GroupResource{Group: nodev1.GroupName, Resource: "runtimeclasses"}, ""}
}

type schedulingInformers struct {
	scheduling.Interface
	scope
}

type schedulingV1Informers struct {
	schedulinginformers.Interface
	scope
}

func (i schedulingInformers) V1() schedulinginformers.Interface {
	return schedulingV1Informers{scope: i.scope}
}

func (i schedulingV1Informers) PriorityClasses() schedulinginformers.PriorityClassInformer {
	return informer[schedulinglisters.PriorityClassLister]{defaults[schedulingv1.PriorityClass, *schedulingv1.PriorityClass]{
		lister[schedulingv1.PriorityClass, *schedulingv1.PriorityClass]{i.scope, schedulingv1.Resource("priorityclasses"), ""}, isDefaultPriorityClass,
	}}
}

type storageInformers struct {
	storage.Interface
	scope
}

type storageV1Informers struct {
	storageinformers.Interface
	scope
}

func (i storageInformers) V1() storageinformers.Interface { return storageV1Informers{scope: i.scope} }

func (i storageV1Informers) StorageClasses() storageinformers.StorageClassInformer {
	return informer[storagelisters.StorageClassLister]{defaults[storagev1.StorageClass, *storagev1.StorageClass]{
		lister[storagev1.StorageClass, *storagev1.StorageClass]{i.scope, storagev1.Resource("storageclasses"), ""}, isDefaultStorageClass,
	}}
}

// defaults lists those of a kind that are marked as a default, which is all that plugins list it for, and gets any. Of the
// others there may be as many as people make, and each would be copied for each request.
type defaults[V any, P object[V]] struct {
	lister[V, P]
	is func(stored runtime.Object) bool
}

func (d defaults[V, P]) List(selector labels.Selector) ([]*V, error) {
	return d.list(selector, false, d.is)
}

func isDefaultPriorityClass(stored runtime.Object) bool {
	class, ok := stored.(*storedscheduling.PriorityClass)
	return ok && class.GlobalDefault
}

func isDefaultStorageClass(stored runtime.Object) bool {
	class, ok := stored.(*storedstorage.StorageClass)
	return ok && volumeutil.IsDefaultAnnotation(class.ObjectMeta)
}

func isDefaultIngressClass(stored runtime.Object) bool {
	class, ok := stored.(*storednetworking.IngressClass)
	return ok && class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
}
