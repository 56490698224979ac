package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// peerSide is one of the two servers that are compared, with connections of its own. Requests are made below client-go,
// and answers are read and thrown away, so that the load costs the machine as little as it can.
type peerSide struct {
	pid         int
	host        string
	connections []*http.Client
	// homes are where objects are: the path before /api and a namespace.
	homes []home
	// made numbers the objects made, so that no name comes twice.
	made atomic.Int64
}

type home struct{ prefix, namespace string }

// newPeerSide makes so many connections, each HTTP/2 as client-go's, with the client certificate of config.
func newPeerSide(pid int, config *rest.Config, connections int) (*peerSide, error) {
	s := &peerSide{pid: pid, host: config.Host}
	for range connections {
		tls, err := rest.TLSConfigFor(config)
		if err != nil {
			return nil, err
		}
		// Compression is the same code on both sides, and would be most of what a list costs.
		s.connections = append(s.connections, &http.Client{Transport: &http.Transport{
			TLSClientConfig: tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
		}})
	}
	return s, nil
}

func (s *peerSide) close() {
	for _, c := range s.connections {
		c.CloseIdleConnections()
	}
}

// do makes a request and wants the status.
func (s *peerSide) do(ctx context.Context, worker int, method, path string, enc encoding, body []byte, want int) error {
	return s.ask(ctx, worker, method, path, enc, body, want, io.Discard)
}

// ask does, and writes the answer to out.
func (s *peerSide) ask(ctx context.Context, worker int, method, path string, enc encoding, body []byte, want int, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", enc.mediaType)
	if body != nil {
		req.Header.Set("Content-Type", enc.mediaType)
	}
	resp, err := s.connections[worker%len(s.connections)].Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		answer, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s %s answers %s: %s", method, path, resp.Status, answer)
	}
	if _, err := io.Copy(out, resp.Body); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// path of a kind's objects in a home.
func (k peerKind) path(h home) string {
	return h.prefix + k.api + "/namespaces/" + h.namespace + "/" + k.resource
}

func (s *peerSide) createNamed(ctx context.Context, worker int, k peerKind, enc encoding, h home, number int) error {
	body := bytes.Replace(k.bodies[enc.mediaType], []byte(nameTemplate), []byte(objectName(number)), 1)
	return s.do(ctx, worker, http.MethodPost, k.path(h), enc, body, http.StatusCreated)
}

// deployment reads one.
func (s *peerSide) deployment(ctx context.Context, worker int, k peerKind, h home, number int) (*appsv1.Deployment, error) {
	path := k.path(h) + "/" + objectName(number)
	var answer bytes.Buffer
	if err := s.ask(ctx, worker, http.MethodGet, path, inJSON, nil, http.StatusOK, &answer); err != nil {
		return nil, err
	}
	d := &appsv1.Deployment{}
	if err := json.Unmarshal(answer.Bytes(), d); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return d, nil
}

// handled says whether a controller has written a condition of a Deployment.
func (s *peerSide) handled(ctx context.Context, k peerKind, h home, number int) (bool, error) {
	d, err := s.deployment(ctx, 0, k, h, number)
	return err == nil && len(d.Status.Conditions) > 0, err
}

// tell writes the status of a Deployment.
func (s *peerSide) tell(ctx context.Context, worker int, k peerKind, h home, number int, status appsv1.DeploymentStatus) error {
	d, err := s.deployment(ctx, worker, k, h, number)
	if err != nil {
		return err
	}
	d.Status = status
	body, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write %s/%s: %w", k.path(h), d.Name, err)
	}
	return s.do(ctx, worker, http.MethodPut, k.path(h)+"/"+d.Name+"/status", inJSON, body, http.StatusOK)
}

// nameTemplate is replaced by names of the same length: the encodings say how long it is.
const nameTemplate = "object-00000000"

func objectName(number int) string { return fmt.Sprintf("object-%08d", number) }

// burst is what one round on one side found.
type burst struct {
	perSecond float64
	cpu       float64 // milliseconds of the server for each request
}

// load makes requests for about so long, by so many workers, and measures until the server is at rest, and done says so.
func (s *peerSide) load(ctx context.Context, workers int, how time.Duration, request func(ctx context.Context, worker, i int) error,
	done func(context.Context) (bool, error)) (burst, error) {
	before, err := cpuTime(s.pid)
	if err != nil {
		return burst{}, err
	}
	began := time.Now()
	var made atomic.Int64
	// Load runs the workers; each makes requests until the time is over, and one at least: in a short time it may not have begun.
	_, _, err = Load(ctx, workers, workers, func(ctx context.Context, worker int) error {
		for {
			if err := request(ctx, worker, int(made.Add(1))); err != nil || time.Since(began) >= how {
				return err
			}
		}
	})
	if err != nil {
		return burst{}, err
	}
	took := time.Since(began)
	// What the requests set off belongs to them: watch events, controllers.
	if err := s.rest(ctx, done); err != nil {
		return burst{}, err
	}
	after, err := cpuTime(s.pid)
	if err != nil {
		return burst{}, err
	}
	n := float64(made.Load())
	return burst{perSecond: n / took.Seconds(), cpu: Milliseconds(after-before) / n}, nil
}

// rest returns once the server is at rest, and done says that it is through: one that gets no processor seems to be at rest.
func (s *peerSide) rest(ctx context.Context, done func(context.Context) (bool, error)) error {
	for deadline := time.Now().Add(settleAtLast); ; {
		if err := settle(ctx, s.pid); err != nil {
			return err
		}
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("what requests set off is not done after %s, and process %d is at rest", settleAtLast, s.pid)
		}
	}
}

// encoding is how objects travel.
type encoding struct{ name, mediaType string }

var (
	inProtobuf = encoding{"protobuf", runtime.ContentTypeProtobuf}
	inJSON     = encoding{"JSON", runtime.ContentTypeJSON}
)

// peerKind is a kind of which the load is made.
type peerKind struct {
	name, api, resource string
	bodies              map[string][]byte // by media type
}

func newPeerKind(name, api, resource string, obj runtime.Object, gv schema.GroupVersion) (peerKind, error) {
	k := peerKind{name: name, api: api, resource: resource, bodies: map[string][]byte{}}
	for _, enc := range []encoding{inProtobuf, inJSON} {
		info, ok := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), enc.mediaType)
		if !ok {
			return k, fmt.Errorf("no serializer for %s", enc.mediaType)
		}
		body, err := runtime.Encode(clientgoscheme.Codecs.EncoderForVersion(info.Serializer, gv), obj)
		if err != nil {
			return k, fmt.Errorf("encode a %s: %w", name, err)
		}
		k.bodies[enc.mediaType] = body
	}
	return k, nil
}

// peerConfigMap has 1 KB of data.
func peerConfigMap() (peerKind, error) {
	return newPeerKind("ConfigMap", "/api/v1", "configmaps", &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: nameTemplate, Labels: map[string]string{"app": "web", "tier": "front"}},
		Data:       map[string]string{"application.properties": strings.Repeat("some.key=a value of it\n", 45)[:1024]},
	}, corev1.SchemeGroupVersion)
}

// peerReplicas are those of a Deployment that has any.
const peerReplicas = 3

// peerDeployment is as a chart makes them: two containers with probes, resources, variables and volumes.
func peerDeployment(replicas int32) (peerKind, error) {
	labels := map[string]string{
		"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "shop", "app.kubernetes.io/version": "1.2.3", "app.kubernetes.io/managed-by": "Helm",
	}
	container := func(name string) corev1.Container {
		c := corev1.Container{
			Name: name, Image: "registry.example/shop/" + name + ":1.2.3",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("http")}}},
			LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/live", Port: intstr.FromString("http")}}},
			EnvFrom:        []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
			VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web"}, {Name: "scratch", MountPath: "/tmp"}},
		}
		for _, name := range []string{"DATABASE_HOST", "DATABASE_NAME", "LOG_LEVEL", "LISTEN"} {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: strings.ToLower(name)})
		}
		return c
	}
	return newPeerKind("Deployment", "/apis/apps/v1", "deployments", &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: nameTemplate, Labels: labels, Annotations: map[string]string{"meta.helm.sh/release-name": "shop"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{container("web"), container("sidecar")},
					Volumes: []corev1.Volume{
						{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
						{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
					},
				},
			},
		},
	}, appsv1.SchemeGroupVersion)
}

// makeNamespace makes a namespace, in JSON.
func (s *peerSide) makeNamespace(ctx context.Context, worker int, name string) error {
	body, err := json.Marshal(&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil {
		return err
	}
	return s.do(ctx, worker, http.MethodPost, "/api/v1/namespaces", inJSON, body, http.StatusCreated)
}
