package kinds

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// A pod talks to the API of its workspace as it would to that of its cluster: by files where clients look for them, and by variables. In a
// physical cluster both come from one Secret for each ServiceAccount of a namespace, which the syncer keeps fresh: tokens, addresses and
// certificates are in no template, and nothing that runs is replaced for them. Why is in docs/design/0014-api-access.md.

const (
	// apiAccessPath is where clients in pods look, and admission mounts a token.
	apiAccessPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// apiAccessVolume is what the volume of a template is called that is mounted there. Admission calls that of each pod otherwise.
	apiAccessVolume = "atoll-api-access"
	// admittedVolumePrefix begins what admission calls it, at random.
	admittedVolumePrefix = "kube-api-access-"
	// rootCAConfigMap is what every namespace has the certificates of its API in.
	rootCAConfigMap = "kube-root-ca.crt"
	// DefaultAccount is the ServiceAccount of pods that name none.
	DefaultAccount = "default"
	// tokenSecretPrefix begins the names of the Secrets, below, with tokens of ServiceAccounts.
	tokenSecretPrefix = "atoll-token-"
	// tokenFileMode: a token that kubelets project is its user's, and a Secret's files are root's, with a mode that may be 0600.
	tokenFileMode int32 = 0o644
	// TokenSeconds is how long a token is good that pods have. It is renewed long before.
	TokenSeconds = 3600
	// admittedTokenSeconds is for how long admission asks, which nobody wrote.
	admittedTokenSeconds = 3607
)

// APIAccess says how pods talk to the API of their workspace. It is in APIAccessAnnotation of what they are rendered to, and of what
// that is rendered from: a copy of a root, or a pod that is bound.
type APIAccess string

const (
	// NoAPIAccess is that of what was rendered before pods had any: another one would roll it out.
	NoAPIAccess APIAccess = ""
	// ProjectedAPIAccess gives pods the tokens that their own volumes project.
	ProjectedAPIAccess APIAccess = "Projected"
	// MountedAPIAccess gives them, besides, the one that admission mounts into pods.
	MountedAPIAccess APIAccess = "Mounted"
)

// APIAccessFor is what admission in the workspace would give pods with that spec, of that ServiceAccount.
func APIAccessFor(spec *corev1.PodSpec, account *corev1.ServiceAccount) APIAccess {
	if ptr.Deref(cmp.Or(spec.AutomountServiceAccountToken, account.AutomountServiceAccountToken), true) {
		return MountedAPIAccess
	}
	return ProjectedAPIAccess
}

// SetAPIAccess says of an object, which the caller does not share, how its pods talk to the API.
func SetAPIAccess(obj ctrlclient.Object, access APIAccess) {
	SetAnnotation(obj, workloadv1alpha1.APIAccessAnnotation, string(access))
}

// SetAnnotation sets an annotation of an object, or takes it away if its value is to be empty. The map that the object had is not changed.
func SetAnnotation(obj metav1.Object, name, value string) {
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[name] = value; value == "" {
		delete(annotations, name)
	}
	obj.SetAnnotations(annotations)
}

// APIAccessOf is what SetAPIAccess said.
func APIAccessOf(obj metav1.Object) APIAccess {
	return APIAccess(strings.TrimSuffix(obj.GetAnnotations()[workloadv1alpha1.APIAccessAnnotation], toldNamespace))
}

// Keys of a Secret with tokens. There is none without the address: a client with a token alone would show it to the physical cluster.
// That is so of the Secret, and not of each pod: what is optional comes into its volumes when it is there, and into its variables only
// where it was there when the container started.
const (
	// TokenKey has the token for the API of the workspace, where pods want one. Those for other audiences are under TokenKeyOf.
	TokenKey          = corev1.ServiceAccountTokenKey
	TokenCAKey        = corev1.ServiceAccountRootCAKey
	TokenNamespaceKey = corev1.ServiceAccountNamespaceKey
	TokenHostKey      = "host"
	TokenPortKey      = "port"
)

// apiVariables are those by which clients in pods find the API, and the keys that they come from. Kubelets set them to the physical
// cluster's: a host of one with a port of the other would be nobody's.
var apiVariables = []struct{ name, key string }{
	{"KUBERNETES_SERVICE_HOST", TokenHostKey},
	{"KUBERNETES_SERVICE_PORT", TokenPortKey},
	{"KUBERNETES_SERVICE_PORT_HTTPS", TokenPortKey},
}

// TokenSecret is the name of the Secret, below, with the tokens of a ServiceAccount; no two have the same. What is too long for a name goes
// by its hash, after a hyphen with which no account begins.
func TokenSecret(account string) string {
	if name := tokenSecretPrefix + account; len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(account))
	return tokenSecretPrefix + "-" + hex.EncodeToString(sum[:])
}

// IsTokenSecret says that a name is one that Secrets with tokens may have below: nobody else's Secret goes there by it, and no pod that
// somebody writes may name it.
func IsTokenSecret(name string) bool { return strings.HasPrefix(name, tokenSecretPrefix) }

// TokenKeyOf is the key, in such a Secret, of the token for an audience, empty for the API of the workspace. It is false for an audience
// that is too long for one.
func TokenKeyOf(audience string) (string, bool) {
	if audience == "" {
		return TokenKey, true
	}
	key := TokenKey + "-" + base64.RawURLEncoding.EncodeToString([]byte(audience))
	return key, len(key) <= validation.DNS1123SubdomainMaxLength
}

// mostAudienceBytes is how long an audience may be that there is a key for.
const mostAudienceBytes = (validation.DNS1123SubdomainMaxLength - len(TokenKey) - 1) * 3 / 4

// IsTokenKey says that a key of such a Secret has a token.
func IsTokenKey(key string) bool {
	_, ok := audienceOf(key)
	return ok
}

// audienceOf is the reverse of TokenKeyOf: false for what it returns for no audience.
func audienceOf(key string) (string, bool) {
	encoded, other := strings.CutPrefix(key, TokenKey+"-")
	if !other {
		return "", key == TokenKey
	}
	audience, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(audience) == 0 {
		return "", false
	}
	canonical, ok := TokenKeyOf(string(audience)) // several texts mean the same bytes
	return string(audience), ok && canonical == key
}

// AccountOf is the name of the ServiceAccount of pods.
func AccountOf(spec *corev1.PodSpec) string { return cmp.Or(spec.ServiceAccountName, DefaultAccount) }

// giveAPIAccess makes of a pod's spec, in place, one whose containers talk to the API of their workspace as access says, and returns what
// it took out of it, for people. A pod that was admitted has the volume of that, which is projected as any other. It is for what somebody wrote,
// not for what it has made of that, which names a Secret with tokens as nobody else may.
//
// Nothing of it has to be there: a syncer of an earlier version makes no such Secret, and pods would wait for it for ever.
func giveAPIAccess(spec *corev1.PodSpec, access APIAccess) (dropped []string) {
	dropped = dropTokenSecrets(spec)
	switch access {
	case NoAPIAccess:
		return dropped
	case MountedAPIAccess:
		mountToken(spec)
	}
	from, talks := tokenSource{TokenSecret(AccountOf(spec))}, false
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.Projected == nil || !slices.ContainsFunc(v.Projected.Sources, isToken) {
			continue
		}
		sources, some, not := from.translate(v)
		v.Projected.Sources, talks, dropped = sources, talks || some, append(dropped, not...)
	}
	if !talks {
		return dropped
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			from.addVariables(&containers[i])
		}
	}
	return dropped
}

func tokenSecretDropped(where, name string) string {
	return fmt.Sprintf("Secret %s in %s: names that begin with %s are of the tokens that pods there talk to the API with", name, where, tokenSecretPrefix)
}

func isToken(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }

// dropTokenSecrets takes out of a pod's spec what names a Secret with tokens, of whichever account, and says what that was: whoever writes
// a pod has the tokens of its own account, as kubelets would give it, and no other's. A volume that is one goes with its mounts; one that is
// opened with it stays, and cannot be: without it a container would write where nothing lasts.
func dropTokenSecrets(spec *corev1.PodSpec) (dropped []string) {
	isDropped := func(where, name string) bool {
		if !IsTokenSecret(name) {
			return false
		}
		dropped = append(dropped, tokenSecretDropped(where, name))
		return true
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		where := "volume " + v.Name
		switch {
		case v.Projected != nil:
			v.Projected.Sources = slices.DeleteFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.Secret != nil && isDropped(where, s.Secret.Name)
			})
			return false
		case v.Secret != nil && isDropped(where, v.Secret.SecretName):
			unmount(spec, v.Name)
			return true
		case v.CSI != nil:
			if r := v.CSI.NodePublishSecretRef; r != nil && isDropped(where, r.Name) {
				v.CSI.NodePublishSecretRef = nil
			}
		case v.AzureFile != nil && isDropped(where, v.AzureFile.SecretName):
			v.AzureFile.SecretName = ""
		default:
			volumeReferences(v, func(string, string) {}, func(r *corev1.LocalObjectReference) {
				if r != nil && isDropped(where, r.Name) {
					r.Name = ""
				}
			})
		}
		return false
	})
	environment := func(container string, from *[]corev1.EnvFromSource, vars *[]corev1.EnvVar) {
		where := "the environment of container " + container
		*from = slices.DeleteFunc(*from, func(f corev1.EnvFromSource) bool { return f.SecretRef != nil && isDropped(where, f.SecretRef.Name) })
		*vars = slices.DeleteFunc(*vars, func(v corev1.EnvVar) bool {
			return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && isDropped(where, v.ValueFrom.SecretKeyRef.Name)
		})
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			environment(containers[i].Name, &containers[i].EnvFrom, &containers[i].Env)
		}
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		environment(c.Name, &c.EnvFrom, &c.Env)
	}
	spec.ImagePullSecrets = slices.DeleteFunc(spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return isDropped("imagePullSecrets", r.Name) })
	return dropped
}

// mountToken does to a template what Kubernetes' admission does to each of its pods (plugin/pkg/admission/serviceaccount), but that the volume
// has one name: into a container that has something mounted where clients look, it mounts nothing.
func mountToken(spec *corev1.PodSpec) {
	name := apiAccessVolume
	there := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, admittedVolumePrefix) })
	if there >= 0 {
		name = spec.Volumes[there].Name
	}
	for n := 2; there < 0 && slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }); n++ {
		name = fmt.Sprintf("%s-%d", apiAccessVolume, n)
	}
	mounted := false
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == apiAccessPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: apiAccessPath})
			mounted = true
		}
	}
	if there >= 0 || !mounted {
		return
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: TokenKey}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap}, Items: []corev1.KeyToPath{{Key: TokenCAKey, Path: TokenCAKey}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: TokenNamespaceKey, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		},
	}}})
}

// tokenSource is the Secret, by its name, that pods have what they need from.
type tokenSource struct{ secret string }

func (t tokenSource) reference() corev1.LocalObjectReference {
	return corev1.LocalObjectReference{Name: t.secret}
}

// items are files of the Secret.
func (t tokenSource) items(items ...corev1.KeyToPath) corev1.VolumeProjection {
	for i := range items {
		items[i].Mode = ptr.To(tokenFileMode)
	}
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: t.reference(), Items: items, Optional: ptr.To(true)}}
}

// translate makes of the sources of a volume with tokens those that say the same of the workspace: its tokens, its certificates and the
// name of its namespace. It says whether there is a token among them, without which the rest is as it was, and what is not as it was asked
// for.
func (t tokenSource) translate(v *corev1.Volume) (translated []corev1.VolumeProjection, some bool, dropped []string) {
	add := func(items []corev1.KeyToPath) {
		if len(items) > 0 {
			translated = append(translated, t.items(items...))
		}
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ServiceAccountToken != nil:
			key, ok := TokenKeyOf(s.ServiceAccountToken.Audience)
			if !ok {
				dropped = append(dropped, fmt.Sprintf("serviceAccountToken in volume %s: its audience is %d bytes long, and may be %d", v.Name, len(s.ServiceAccountToken.Audience), mostAudienceBytes))
				continue
			}
			if asked := ptr.Deref(s.ServiceAccountToken.ExpirationSeconds, TokenSeconds); asked != TokenSeconds && asked != admittedTokenSeconds {
				dropped = append(dropped, fmt.Sprintf("expirationSeconds %d of serviceAccountToken in volume %s: tokens there are good for %d, and are renewed", asked, v.Name, TokenSeconds))
			}
			some = true
			add([]corev1.KeyToPath{{Key: key, Path: s.ServiceAccountToken.Path}})
		case s.ConfigMap != nil && s.ConfigMap.Name == rootCAConfigMap:
			items := []corev1.KeyToPath{{Key: TokenCAKey, Path: TokenCAKey}} // all that is in it
			if len(s.ConfigMap.Items) > 0 {
				items = slices.DeleteFunc(slices.Clone(s.ConfigMap.Items), func(i corev1.KeyToPath) bool { return i.Key != TokenCAKey })
			}
			add(items)
		case s.DownwardAPI != nil:
			var items []corev1.KeyToPath
			rest := slices.DeleteFunc(slices.Clone(s.DownwardAPI.Items), func(f corev1.DownwardAPIVolumeFile) bool {
				if f.FieldRef == nil || f.FieldRef.FieldPath != "metadata.namespace" {
					return false
				}
				items = append(items, corev1.KeyToPath{Key: TokenNamespaceKey, Path: f.Path})
				return true
			})
			if len(rest) > 0 || len(items) == 0 {
				translated = append(translated, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: rest}})
			}
			add(items)
		default:
			translated = append(translated, s)
		}
	}
	if !some {
		translated = slices.DeleteFunc(slices.Clone(v.Projected.Sources), isToken)
	}
	return onceEach(translated), some, dropped
}

// onceEach leaves out of the sources of a volume what a later one of the same path hides. Validation minds that among files of Secrets, of
// which there were fewer when the pod was admitted.
func onceEach(sources []corev1.VolumeProjection) []corev1.VolumeProjection {
	hidden := map[string]bool{}
	for i := len(sources) - 1; i >= 0; i-- {
		s := &sources[i]
		isHidden := func(path string) bool {
			was := hidden[path]
			hidden[path] = true
			return was
		}
		file := func(items []corev1.KeyToPath) []corev1.KeyToPath {
			kept := slices.Clone(items)
			slices.Reverse(kept)
			kept = slices.DeleteFunc(kept, func(k corev1.KeyToPath) bool { return isHidden(k.Path) })
			slices.Reverse(kept)
			return kept
		}
		empty := false
		switch {
		case s.Secret != nil && len(s.Secret.Items) > 0:
			secret := *s.Secret
			secret.Items = file(secret.Items)
			s.Secret, empty = &secret, len(secret.Items) == 0
		case s.ConfigMap != nil && len(s.ConfigMap.Items) > 0:
			configMap := *s.ConfigMap
			configMap.Items = file(configMap.Items)
			s.ConfigMap, empty = &configMap, len(configMap.Items) == 0
		case s.DownwardAPI != nil && len(s.DownwardAPI.Items) > 0:
			downward := *s.DownwardAPI
			downward.Items = slices.DeleteFunc(slices.Clone(downward.Items), func(f corev1.DownwardAPIVolumeFile) bool { return isHidden(f.Path) })
			s.DownwardAPI, empty = &downward, len(downward.Items) == 0
		}
		if empty {
			sources = slices.Delete(sources, i, i+1)
		}
	}
	return sources
}

// addVariables puts the variables before a container's own, which may be made of them. One that sets any of them finds its API by itself.
func (t tokenSource) addVariables(c *corev1.Container) {
	var vars []corev1.EnvVar
	for _, v := range apiVariables {
		if slices.ContainsFunc(c.Env, func(own corev1.EnvVar) bool { return own.Name == v.name }) {
			return
		}
		vars = append(vars, corev1.EnvVar{Name: v.name, ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: t.reference(), Key: v.key, Optional: ptr.To(true)},
		}})
	}
	c.Env = append(vars, c.Env...)
}
