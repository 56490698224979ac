package kinds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// TestTokenSecret: each ServiceAccount has a Secret of its own, by a name that Secrets may have.
func TestTokenSecret(t *testing.T) {
	// Who runs in the cluster has the name in its templates: it is for good.
	fits, long := strings.Repeat("a", 241), strings.Repeat("a", 242)
	for account, want := range map[string]string{
		"default": "atoll-token-default",
		"a.b-c":   "atoll-token-a.b-c",
		fits:      "atoll-token-" + fits,
		long:      "atoll-token--8fded59c427b2e6809c810915aaca9635732a1decc4ba2ac8e0a1d90fc1092c9",
	} {
		got := TokenSecret(account)
		if got != want || !IsTokenSecret(got) {
			t.Errorf("%s: %q, want %q", account, got, want)
		}
		if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
			t.Errorf("%s: %q is no name: %v", account, got, errs)
		}
	}
	// An account that is called as the other one's Secret ends would have its tokens.
	alike := strings.TrimPrefix(TokenSecret(long), tokenSecretPrefix)
	if errs := validation.IsDNS1123Subdomain(alike); len(errs) == 0 {
		t.Errorf("an account may be called %q, and has the Secret of another", alike)
	}
	if TokenSecret(long) == TokenSecret(long+"a") {
		t.Error("two accounts have one Secret")
	}
	for _, name := range []string{"token-default", "atoll-token", "my-atoll-token-x", ""} {
		if IsTokenSecret(name) {
			t.Errorf("%q is kept from workspaces", name)
		}
	}
}

// TestTokenKeys: an audience is read back of its key, and of nothing else.
func TestTokenKeys(t *testing.T) {
	for _, tc := range []struct {
		reason, audience, key string
	}{
		{"the API of the workspace", "", "token"},
		{"another", "vault", "token-dmF1bHQ"},
		{"characters that keys may not have", "https://sts.example.com/?a=b&c>", "token-aHR0cHM6Ly9zdHMuZXhhbXBsZS5jb20vP2E9YiZjPg"},
		{"the longest", strings.Repeat("x", mostAudienceBytes), "token-" + strings.Repeat("eHh4", 61) + "eHg"},
	} {
		key, ok := TokenKeyOf(tc.audience)
		if !ok || key != tc.key {
			t.Errorf("%s: the key is %q, %v, want %q", tc.reason, key, ok, tc.key)
		}
		if errs := validation.IsConfigMapKey(key); len(errs) > 0 {
			t.Errorf("%s: %q is no key: %v", tc.reason, key, errs)
		}
		if audience, ok := audienceOf(key); !ok || audience != tc.audience {
			t.Errorf("%s: %q is read back as %q, %v", tc.reason, key, audience, ok)
		}
	}
	if key, ok := TokenKeyOf(strings.Repeat("x", mostAudienceBytes+1)); ok {
		t.Errorf("an audience that is too long has the key %q", key)
	}
	for _, key := range []string{"ca.crt", "namespace", "host", "port", "", "token-", "token-*", "token-dmF1bHQ=", "token-YR", "token-dmF1\nbHQ", "xtoken"} {
		if audience, ok := audienceOf(key); ok {
			t.Errorf("%q is read as the audience %q", key, audience)
		}
	}
}

// FuzzTokenKeys: no two keys are read as one audience, and no two audiences have one key.
func FuzzTokenKeys(f *testing.F) {
	for _, seed := range []string{"", "vault", "token-dmF1bHQ", "token-YR", "token", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if key, ok := TokenKeyOf(text); ok {
			if back, ok := audienceOf(key); !ok || back != text {
				t.Errorf("audience %q has the key %q, which is read as %q, %v", text, key, back, ok)
			}
		}
		if audience, ok := audienceOf(text); ok {
			if key, ok := TokenKeyOf(audience); !ok || key != text {
				t.Errorf("key %q is read as %q, whose key is %q, %v", text, audience, key, ok)
			}
		}
	})
}

// What tests write and expect of pods.
func projected(name string, sources ...corev1.VolumeProjection) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

func tokenFor(audience, path string) corev1.VolumeProjection {
	return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, Path: path, ExpirationSeconds: ptr.To(int64(3600))}}
}

// lasting is a token that is asked for with a time of its own.
func lasting(seconds int64, path string) corev1.VolumeProjection {
	token := tokenFor("", path)
	token.ServiceAccountToken.ExpirationSeconds = &seconds
	return token
}

func rootCA(items ...corev1.KeyToPath) corev1.VolumeProjection {
	return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: items}}
}

// downward has a field of the pod under each path.
func downward(pathsAndFields ...string) corev1.VolumeProjection {
	d := &corev1.DownwardAPIProjection{}
	for i := 0; i < len(pathsAndFields); i += 2 {
		d.Items = append(d.Items, corev1.DownwardAPIVolumeFile{Path: pathsAndFields[i], FieldRef: &corev1.ObjectFieldSelector{FieldPath: pathsAndFields[i+1]}})
	}
	return corev1.VolumeProjection{DownwardAPI: d}
}

// files are those of an account's Secret, each key under its path.
func files(account string, keysAndPaths ...string) corev1.VolumeProjection {
	s := &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "atoll-token-" + account}, Optional: ptr.To(true)}
	for i := 0; i < len(keysAndPaths); i += 2 {
		s.Items = append(s.Items, corev1.KeyToPath{Key: keysAndPaths[i], Path: keysAndPaths[i+1], Mode: ptr.To(int32(0o644))})
	}
	return corev1.VolumeProjection{Secret: s}
}

// access is the volume of a template, by that name.
func access(name, account string) corev1.Volume {
	v := projected(name, files(account, "token", "token"), files(account, "ca.crt", "ca.crt"), files(account, "namespace", "namespace"))
	v.Projected.DefaultMode = ptr.To(int32(0o644))
	return v
}

func variables(account string, own ...corev1.EnvVar) (vars []corev1.EnvVar) {
	for _, v := range [][2]string{{"KUBERNETES_SERVICE_HOST", "host"}, {"KUBERNETES_SERVICE_PORT", "port"}, {"KUBERNETES_SERVICE_PORT_HTTPS", "port"}} {
		vars = append(vars, corev1.EnvVar{Name: v[0], ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "atoll-token-" + account}, Key: v[1], Optional: ptr.To(true),
		}}})
	}
	return append(vars, own...)
}

func mounts(namesAndPaths ...string) (all []corev1.VolumeMount) {
	for i := 0; i < len(namesAndPaths); i += 2 {
		all = append(all, corev1.VolumeMount{Name: namesAndPaths[i], MountPath: namesAndPaths[i+1], ReadOnly: namesAndPaths[i+1] == apiAccessPath})
	}
	return all
}

func fromSecret(name string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: "token"}}
}

// TestAPIAccessFor: who says whether a token is mounted, says it as in Kubernetes.
func TestAPIAccessFor(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	for _, tc := range []struct {
		pods, account *bool
		want          APIAccess
	}{
		{nil, nil, MountedAPIAccess},
		{nil, no, ProjectedAPIAccess},
		{nil, yes, MountedAPIAccess},
		{no, yes, ProjectedAPIAccess},
		{yes, no, MountedAPIAccess},
	} {
		got := APIAccessFor(&corev1.PodSpec{AutomountServiceAccountToken: tc.pods}, &corev1.ServiceAccount{AutomountServiceAccountToken: tc.account})
		if got != tc.want {
			t.Errorf("pods say %v, the account %v: %q, want %q", ptr.Deref(tc.pods, true), ptr.Deref(tc.account, true), got, tc.want)
		}
	}
}

// TestNoAPIAccess: what was rendered before pods had any is rendered as it was, but for what names Secrets with tokens.
func TestNoAPIAccess(t *testing.T) {
	spec := corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
		Volumes:    []corev1.Volume{projected("v", tokenFor("", "t"), rootCA(), files("other", "token", "t"))},
	}
	want := corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Containers:                   spec.Containers,
		Volumes:                      []corev1.Volume{projected("v", rootCA())},
	}
	got := spec.DeepCopy()
	podsContent(got, NoAPIAccess)
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestGiveAPIAccess has a case for each rule of docs/design/0014-api-access.md.
func TestGiveAPIAccess(t *testing.T) {
	const path = apiAccessPath
	local := corev1.LocalObjectReference{Name: "atoll-token-other"}
	tooLong := strings.Repeat("x", mostAudienceBytes+1)
	for name, tc := range map[string]struct {
		reason     string
		mount      bool
		spec, want corev1.PodSpec
		dropped    int
	}{
		// 1. References to Secrets with tokens are taken out.
		"Volume": {"it goes with its mounts", false,
			corev1.PodSpec{
				Volumes:             []corev1.Volume{{Name: "stolen", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: local.Name}}}, {Name: "own"}},
				InitContainers:      []corev1.Container{{VolumeMounts: mounts("stolen", "/s")}},
				Containers:          []corev1.Container{{VolumeMounts: mounts("own", "/o", "stolen", "/s")}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mounts("stolen", "/s")}}},
			},
			corev1.PodSpec{
				Volumes:             []corev1.Volume{{Name: "own"}},
				InitContainers:      []corev1.Container{{VolumeMounts: []corev1.VolumeMount{}}},
				Containers:          []corev1.Container{{VolumeMounts: mounts("own", "/o")}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{}}}},
			}, 1},
		"Opened": {"what is opened with one cannot be: without it a container would write where nothing lasts", false,
			corev1.PodSpec{Volumes: []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: local.Name}}},
				{Name: "f", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: &local}}},
			}},
			corev1.PodSpec{Volumes: []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{}}},
				{Name: "f", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: &corev1.LocalObjectReference{}}}},
			}}, 2},
		"Projection": {"the rest of the volume stays", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("other", "token", "t"), downward("n", "metadata.name"))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", downward("n", "metadata.name"))}}, 1},
		"OwnAccount": {"nor its own account's: what is there is what was rendered", false,
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", files("bot", "token", "t"))}},
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", []corev1.VolumeProjection{}...)}}, 1},
		"CSI": {"its driver gets none", false,
			corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", NodePublishSecretRef: &local}}}}},
			corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}}}, 1},
		"Environment": {"of all containers", false,
			corev1.PodSpec{
				InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "A", ValueFrom: fromSecret(local.Name)}, {Name: "B", ValueFrom: fromSecret("own")}}}},
				Containers:     []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local}}}}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					Env: []corev1.EnvVar{{Name: "A", ValueFrom: fromSecret(local.Name)}},
				}}},
			},
			corev1.PodSpec{
				InitContainers:      []corev1.Container{{Env: []corev1.EnvVar{{Name: "B", ValueFrom: fromSecret("own")}}}},
				Containers:          []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local}}}}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: []corev1.EnvVar{}}}},
			}, 3},
		"PullSecrets": {"a name is a name", false,
			corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{local, {Name: "pull"}}},
			corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}, 1},

		"SamePath": {"kubelets let the later one win, and validation minds two files of Secrets", false,
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v",
				corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "own"}, Items: []corev1.KeyToPath{{Key: "a", Path: "token"}, {Key: "b", Path: "b"}}}},
				downward("token", "metadata.name", "name", "metadata.name"),
				tokenFor("", "token"),
				corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "own"}, Items: []corev1.KeyToPath{{Key: "c", Path: "ca.crt"}}}},
				rootCA())}},
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v",
				corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "own"}, Items: []corev1.KeyToPath{{Key: "b", Path: "b"}}}},
				downward("name", "metadata.name"), files("bot", "token", "token"), files("bot", "ca.crt", "ca.crt"))},
				Containers: nil}, 0},

		// 2. Where admission would mount a token, its volume is added.
		"Mounted": {"into all containers, of the account `default` where none is named", true,
			corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c", VolumeMounts: mounts("own", "/o")}}, Volumes: []corev1.Volume{{Name: "own"}}},
			corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "i", VolumeMounts: mounts("atoll-api-access", path), Env: variables("default")}},
				Containers:     []corev1.Container{{Name: "c", VolumeMounts: mounts("own", "/o", "atoll-api-access", path), Env: variables("default")}},
				Volumes:        []corev1.Volume{{Name: "own"}, access("atoll-api-access", "default")},
			}, 0},
		"MountedOtherwise": {"a container that has something there keeps it", true,
			corev1.PodSpec{ServiceAccountName: "bot", Containers: []corev1.Container{{VolumeMounts: mounts("own", path)}, {}}, Volumes: []corev1.Volume{{Name: "own"}}},
			corev1.PodSpec{ServiceAccountName: "bot",
				Containers: []corev1.Container{{VolumeMounts: mounts("own", path), Env: variables("bot")}, {VolumeMounts: mounts("atoll-api-access", path), Env: variables("bot")}},
				Volumes:    []corev1.Volume{{Name: "own"}, access("atoll-api-access", "bot")},
			}, 0},
		"NothingToMount": {"all have something there, and there is no volume that nobody mounts", true,
			corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: mounts("own", path)}}, Volumes: []corev1.Volume{{Name: "own"}}},
			corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: mounts("own", path)}}, Volumes: []corev1.Volume{{Name: "own"}}}, 0},
		"NameTaken": {"the pod would be refused", true,
			corev1.PodSpec{Containers: []corev1.Container{{}}, Volumes: []corev1.Volume{{Name: "atoll-api-access"}, {Name: "atoll-api-access-2"}}},
			corev1.PodSpec{
				Containers: []corev1.Container{{VolumeMounts: mounts("atoll-api-access-3", path), Env: variables("default")}},
				Volumes:    []corev1.Volume{{Name: "atoll-api-access"}, {Name: "atoll-api-access-2"}, access("atoll-api-access-3", "default")},
			}, 0},
		"LooksAdmitted": {"admission mounts what is called as its volumes are", true,
			corev1.PodSpec{Containers: []corev1.Container{{}}, Volumes: []corev1.Volume{projected("kube-api-access-x", tokenFor("", "token"))}},
			corev1.PodSpec{
				Containers: []corev1.Container{{VolumeMounts: mounts("kube-api-access-x", path), Env: variables("default")}},
				Volumes:    []corev1.Volume{projected("kube-api-access-x", files("default", "token", "token"))},
			}, 0},
		"NotMounted": {"nobody asks for it", false,
			corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "A"}}}}, Volumes: []corev1.Volume{projected("v", rootCA(), downward("n", "metadata.namespace"))}},
			corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "A"}}}}, Volumes: []corev1.Volume{projected("v", rootCA(), downward("n", "metadata.namespace"))}}, 0},
		"Admitted": {"a bound pod says it by its own volume", false,
			corev1.PodSpec{ServiceAccountName: "bot",
				Containers: []corev1.Container{{VolumeMounts: mounts("kube-api-access-x7k2p", path)}},
				Volumes:    []corev1.Volume{projected("kube-api-access-x7k2p", tokenFor("", "token"), rootCA(corev1.KeyToPath{Key: "ca.crt", Path: "ca.crt"}), downward("namespace", "metadata.namespace"))},
			},
			corev1.PodSpec{ServiceAccountName: "bot",
				Containers: []corev1.Container{{VolumeMounts: mounts("kube-api-access-x7k2p", path), Env: variables("bot")}},
				Volumes:    []corev1.Volume{projected("kube-api-access-x7k2p", files("bot", "token", "token"), files("bot", "ca.crt", "ca.crt"), files("bot", "namespace", "namespace"))},
			}, 0},

		// 3. Projections are translated.
		"Audiences": {"each token by its key, at its path", false,
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", tokenFor("vault", "vault/token"), tokenFor("", "api"))}},
			corev1.PodSpec{ServiceAccountName: "bot", Volumes: []corev1.Volume{projected("v", files("bot", "token-dmF1bHQ", "vault/token"), files("bot", "token", "api"))}}, 0},
		"Certificates": {"what is in the ConfigMap, at its path, readable for all", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", tokenFor("", "t"), rootCA(), rootCA(corev1.KeyToPath{Key: "ca.crt", Path: "tls/ca.pem", Mode: ptr.To(int32(0o400))}), rootCA(corev1.KeyToPath{Key: "other", Path: "x"}))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("default", "token", "t"), files("default", "ca.crt", "ca.crt"), files("default", "ca.crt", "tls/ca.pem"))}}, 0},
		"Namespace": {"the rest of what the pod says of itself is true below, too", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", downward("n", "metadata.name", "ns", "metadata.namespace"), tokenFor("", "t"))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", downward("n", "metadata.name"), files("default", "namespace", "ns"), files("default", "token", "t"))}}, 0},
		"OtherVolumes": {"without a token the certificates and the namespace are the cluster's", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", tokenFor("", "t")), projected("w", rootCA(), downward("n", "metadata.namespace"))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("default", "token", "t")), projected("w", rootCA(), downward("n", "metadata.namespace"))}}, 0},
		"Expiration": {"each time but an hour's is told: admission asks for its own, and a default is none", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", lasting(600, "short"), lasting(7200, "long"), lasting(3600, "default"), lasting(3607, "admitted"))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("default", "token", "short"), files("default", "token", "long"), files("default", "token", "default"), files("default", "token", "admitted"))}}, 2},
		"TooLong": {"no Secret has such a key, and nobody would make one for the rest of the volume", false,
			corev1.PodSpec{Containers: []corev1.Container{{}}, Volumes: []corev1.Volume{projected("v", tokenFor(tooLong, "t"), rootCA(), downward("n", "metadata.name", "ns", "metadata.namespace"))}},
			corev1.PodSpec{Containers: []corev1.Container{{}}, Volumes: []corev1.Volume{projected("v", rootCA(), downward("n", "metadata.name", "ns", "metadata.namespace"))}}, 1},
		"OneTooLong": {"the rest is with the other token", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", tokenFor(tooLong, "t"), rootCA(), tokenFor("", "api"))}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("default", "ca.crt", "ca.crt"), files("default", "token", "api"))}}, 1},

		// 4. Variables come first, in each container that sets none of them.
		"Variables": {"those of a container may be made of them", false,
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", tokenFor("vault", "t"))}, Containers: []corev1.Container{
				{Env: []corev1.EnvVar{{Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST)"}}}, {Env: []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_PORT", Value: "1"}}},
			}},
			corev1.PodSpec{Volumes: []corev1.Volume{projected("v", files("default", "token-dmF1bHQ", "t"))}, Containers: []corev1.Container{
				{Env: variables("default", corev1.EnvVar{Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST)"})}, {Env: []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_PORT", Value: "1"}}},
			}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.spec.DeepCopy()
			access := ProjectedAPIAccess
			if tc.mount {
				access = MountedAPIAccess
			}
			dropped := giveAPIAccess(got, access)
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if len(dropped) != tc.dropped {
				t.Errorf("%q is told, want %d sentences", dropped, tc.dropped)
			}
			for _, v := range got.Volumes {
				if v.Projected != nil {
					for _, s := range v.Projected.Sources {
						if isToken(s) {
							t.Errorf("volume %s has a token of the physical cluster", v.Name)
						}
					}
				}
			}
		})
	}
}
