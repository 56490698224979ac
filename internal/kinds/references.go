package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Reference names an object that another one, or its pods, need, in its namespace.
type Reference struct {
	// Kind is ConfigMap, Secret, ServiceAccount or PersistentVolumeClaim; Service, of what a StatefulSet needs.
	Kind, Name string
}

// String is "Kind/name".
func (r Reference) String() string { return r.Kind + "/" + r.Name }

// References returns what the pods of a template need beside it, optional references included, each once and sorted.
// What a ServiceAccount needs in turn is not followed: see PullSecrets.
func References(t *corev1.PodTemplateSpec) []Reference {
	var refs []Reference
	add := func(kind, name string) {
		// Secrets with tokens are the syncer's: what a leaf names of them is nothing of its workspace.
		if name != "" && !(kind == "Secret" && IsTokenSecret(name)) {
			refs = append(refs, Reference{kind, name})
		}
	}
	secret := func(r *corev1.LocalObjectReference) {
		if r != nil {
			add("Secret", r.Name)
		}
	}
	spec := &t.Spec
	for _, v := range spec.Volumes {
		volumeReferences(v, add, secret)
	}
	env := func(from []corev1.EnvFromSource, vars []corev1.EnvVar) {
		for _, f := range from {
			if f.ConfigMapRef != nil {
				add("ConfigMap", f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				add("Secret", f.SecretRef.Name)
			}
		}
		for _, v := range vars {
			if v.ValueFrom == nil {
				continue
			}
			if r := v.ValueFrom.ConfigMapKeyRef; r != nil {
				add("ConfigMap", r.Name)
			}
			if r := v.ValueFrom.SecretKeyRef; r != nil {
				add("Secret", r.Name)
			}
		}
	}
	for _, c := range spec.InitContainers {
		env(c.EnvFrom, c.Env)
	}
	for _, c := range spec.Containers {
		env(c.EnvFrom, c.Env)
	}
	for _, c := range spec.EphemeralContainers {
		env(c.EnvFrom, c.Env)
	}
	for _, r := range spec.ImagePullSecrets {
		add("Secret", r.Name)
	}
	add("ServiceAccount", spec.ServiceAccountName)

	slices.SortFunc(refs, func(a, b Reference) int {
		switch {
		case a.String() < b.String():
			return -1
		case a.String() > b.String():
			return 1
		}
		return 0
	})
	return slices.Compact(refs)
}

// volumeReferences: every volume source of corev1 that names a ConfigMap, a Secret or a claim of the pod's namespace. Those
// that name a Secret of another namespace do not exist in pods.
func volumeReferences(v corev1.Volume, add func(kind, name string), secret func(*corev1.LocalObjectReference)) {
	if v.PersistentVolumeClaim != nil {
		add(ClaimKind, v.PersistentVolumeClaim.ClaimName)
	}
	if v.ConfigMap != nil {
		add("ConfigMap", v.ConfigMap.Name)
	}
	if v.Secret != nil {
		add("Secret", v.Secret.SecretName)
	}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add("ConfigMap", s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add("Secret", s.Secret.Name)
			}
		}
	}
	if v.CSI != nil {
		secret(v.CSI.NodePublishSecretRef)
	}
	if v.AzureFile != nil {
		add("Secret", v.AzureFile.SecretName)
	}
	if v.CephFS != nil {
		secret(v.CephFS.SecretRef)
	}
	if v.Cinder != nil {
		secret(v.Cinder.SecretRef)
	}
	if v.FlexVolume != nil {
		secret(v.FlexVolume.SecretRef)
	}
	if v.RBD != nil {
		secret(v.RBD.SecretRef)
	}
	if v.ScaleIO != nil {
		secret(v.ScaleIO.SecretRef)
	}
	if v.ISCSI != nil {
		secret(v.ISCSI.SecretRef)
	}
	if v.StorageOS != nil {
		secret(v.StorageOS.SecretRef)
	}
}

// PullSecrets returns the Secrets that pods of a ServiceAccount pull images with.
func PullSecrets(sa *corev1.ServiceAccount) []Reference {
	var refs []Reference
	for _, r := range sa.ImagePullSecrets {
		if r.Name != "" && !IsTokenSecret(r.Name) {
			refs = append(refs, Reference{"Secret", r.Name})
		}
	}
	return refs
}
