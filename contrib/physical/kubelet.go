package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

const (
	// mostRequests is how many logs are followed and commands run at a time. More are refused: this is a cluster of one developer, or of one test.
	mostRequests = 64
	// longestRequest is how long one of them may take: as long as a kubelet lets a stream be idle.
	longestRequest = 4 * time.Hour
	// headerPatience is how long the head of a request may take, and writePatience a piece of an answer.
	headerPatience = 10 * time.Second
	writePatience  = time.Minute
)

// kubelet answers the apiserver for the containers of all simulated nodes: with their logs and, if the options say so, by running commands on
// this machine. kwok has a server of its own for both. It is not used: it asks nobody who he is, so that every user of the machine could run
// commands as the one who started the cluster; it has no log but files that somebody writes; and a command outlives who asked for it.
type kubelet struct {
	cluster    string
	client     kubernetes.Interface
	execOnHost bool
	dir        string // where commands run

	slots   *semaphore.Weighted // mostRequests of them
	running *semaphore.Weighted // commands, as many
	longest time.Duration       // longestRequest
}

// startKubelet opens a port on loopback and returns it. Only who has the certificate of the apiserver for kubelets is answered there: its authority
// signs nothing else, so that no certificate that the cluster gives out is one.
func startKubelet(parts *parts, o *options, p pki, client kubernetes.Interface) (int32, error) {
	pair, err := tls.LoadX509KeyPair(p.cert(kubeletServer), p.key(kubeletServer))
	if err != nil {
		return 0, fmt.Errorf("load its certificate: %w", err)
	}
	authorities, err := cert.CertsFromFile(p.cert(kubeletCA))
	if err != nil {
		return 0, fmt.Errorf("load the authority of its clients: %w", err)
	}
	clients := x509.NewCertPool()
	for _, authority := range authorities {
		clients.AddCert(authority)
	}
	k := newKubelet(o, client)
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return 0, fmt.Errorf("make the directory of commands: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("open its port: %w", err)
	}
	server := &http.Server{
		Handler:           k.handler(),
		ReadHeaderTimeout: headerPatience,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10, // a command is part of it
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		},
		ConnContext: withConn,
		ErrorLog:    klog.NewStandardLogger("WARNING"),
	}
	parts.add("kubelet", func(ctx context.Context) error {
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		context.AfterFunc(ctx, func() { _ = server.Close() }) // what is asked for ends with ctx
		if err := server.ServeTLS(listener, "", ""); ctx.Err() == nil {
			return err
		}
		// Connections of commands are not the server's any more: who has all of running knows that none runs, and that none begins.
		return k.running.Acquire(context.WithoutCancel(ctx), mostRequests)
	})
	return int32(listener.Addr().(*net.TCPAddr).Port), nil
}

func newKubelet(o *options, client kubernetes.Interface) *kubelet {
	return &kubelet{
		cluster: o.name, client: client, execOnHost: o.execOnHost, dir: o.path("exec"),
		slots: semaphore.NewWeighted(mostRequests), running: semaphore.NewWeighted(mostRequests), longest: longestRequest,
	}
}

func (k *kubelet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /containerLogs/{namespace}/{pod}/{container}", k.bounded(k.logs))
	for _, path := range []string{"/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"} {
		for _, method := range []string{"GET ", "POST "} { // of a WebSocket, and of SPDY
			mux.Handle(method+path, k.bounded(k.exec))
		}
	}
	for _, what := range []string{"attach", "portForward"} {
		mux.HandleFunc("/"+what+"/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, what+" does not work here: pods are simulated, and no process is there", http.StatusNotImplemented)
		})
	}
	return mux
}

// bounded bounds how many requests are answered at a time, and how long each takes.
func (k *kubelet) bounded(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if !k.slots.TryAcquire(1) {
			http.Error(w, fmt.Sprintf("%d logs and commands are open already in simulated cluster %q, and it has no more at a time", mostRequests, k.cluster), http.StatusTooManyRequests)
			return
		}
		defer k.slots.Release(1)
		ctx, cancel := context.WithTimeoutCause(req.Context(), k.longest, fmt.Errorf("it took longer than %s", k.longest))
		defer cancel()
		answer(w, req.WithContext(ctx))
	}
}

// refusal is why something is not answered, and its code.
type refusal struct {
	code int
	why  string
}

func (r *refusal) Error() string { return r.why }

func refuse(code int, format string, args ...any) *refusal {
	return &refusal{code: code, why: fmt.Sprintf(format, args...)}
}

// writeRefusal says why, in text, as kubelets do.
func writeRefusal(w http.ResponseWriter, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{code: http.StatusInternalServerError, why: err.Error()}
	}
	http.Error(w, r.why, r.code)
}

// find returns the pod and the container that a request is about.
func (k *kubelet) find(ctx context.Context, req *http.Request) (*corev1.Pod, *corev1.Container, error) {
	namespace, name := req.PathValue("namespace"), req.PathValue("pod")
	pod, err := k.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	uid := req.PathValue("uid")
	switch {
	case apierrors.IsNotFound(err) || err == nil && (pod.Spec.NodeName == "" || uid != "" && uid != string(pod.UID)):
		return nil, nil, refuse(http.StatusNotFound, "pod %q does not exist", name)
	case err != nil:
		return nil, nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	container := containerOf(pod, req.PathValue("container"))
	if container == nil {
		return nil, nil, refuse(http.StatusNotFound, "container %q not found in pod %q", req.PathValue("container"), name)
	}
	return pod, container, nil
}

func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if containers[i].Name == name {
				return &containers[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return (*corev1.Container)(&e.EphemeralContainerCommon)
		}
	}
	return nil
}

// statusOf returns what is said of a container, or why nothing is.
func statusOf(pod *corev1.Pod, container string) (corev1.ContainerStatus, error) {
	for _, all := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, status := range all {
			if status.Name == container {
				return status, nil
			}
		}
	}
	return corev1.ContainerStatus{}, refuse(http.StatusBadRequest, "container %q in pod %q is not available", container, pod.Name)
}
