package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2/textlogger"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	finalizer = group + "/archive"
	archive   = "archive"
	// What a process that was killed leaves is taken over after leaseDuration.
	leaseDuration, renewDeadline, retryPeriod = 6 * time.Second, 4 * time.Second, time.Second
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run() error {
	id := flag.String("id", "", "Name of this process, in what it prints.")
	namespace := flag.String("leader-election-namespace", "printers", "Where the Lease is.")
	port := flag.Int("webhook-port", 9443, "Port for webhooks.")
	certs := flag.String("cert-dir", "", "Folder with tls.crt and tls.key.")
	health := flag.String("health-probe-bind-address", ":8081", "Address for /healthz and /readyz.")
	flag.Parse() // --kubeconfig is controller-runtime's
	ctrl.SetLogger(textlogger.NewLogger(textlogger.NewConfig()))

	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addToScheme(scheme)
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  scheme,
		LeaderElection:          true,
		LeaderElectionID:        "printer",
		LeaderElectionNamespace: *namespace,
		LeaseDuration:           &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: *health,
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certs}),
	})
	if err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("webhooks", manager.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(manager, &Poster{}).WithDefaulter(hooks{}).WithValidator(hooks{}).Complete(); err != nil {
		return err
	}
	printer := &printer{client: manager.GetClient(), live: manager.GetAPIReader(), id: *id}
	err = ctrl.NewControllerManagedBy(manager).For(&Poster{}).Owns(&corev1.ConfigMap{}).Complete(printer)
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// printer makes a ConfigMap of each Poster.
type printer struct {
	client client.Client
	live   client.Reader
	id     string
}

// Reconcile prints, or archives and lets go.
func (r *printer) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	poster := &Poster{}
	// Not from a cache, as Kubernetes' own controllers read before they adopt: the cache of ConfigMaps may show already that one was orphaned, and that
	// of Posters not yet that its Poster goes, with which it would go after all.
	if err := r.live.Get(ctx, req.NamespacedName, poster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !poster.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.takeDown(ctx, poster)
	}
	if controllerutil.AddFinalizer(poster, finalizer) {
		return ctrl.Result{}, r.client.Update(ctx, poster) // which brings us back
	}
	print := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: poster.Namespace, Name: poster.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.client, print, func() error {
		print.Data = map[string]string{"print": fmt.Sprintf("%s, %d by %d", poster.Spec.Text, poster.Spec.Width, poster.Spec.Height)}
		return controllerutil.SetControllerReference(poster, print, r.client.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if poster.Status.Generation == poster.Generation {
		return ctrl.Result{}, nil
	}
	poster.Status.Generation, poster.Status.PrintedBy = poster.Generation, r.id
	meta.SetStatusCondition(&poster.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Printed", ObservedGeneration: poster.Generation,
	})
	return ctrl.Result{}, r.client.Status().Update(ctx, poster)
}

// takeDown writes the Poster into the archive, and then lets it go.
func (r *printer) takeDown(ctx context.Context, poster *Poster) error {
	if !controllerutil.ContainsFinalizer(poster, finalizer) {
		return nil
	}
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: poster.Namespace, Name: archive}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.client, book, func() error {
		if book.Data == nil {
			book.Data = map[string]string{}
		}
		book.Data[poster.Name] = r.id
		return nil
	})
	if err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(poster, finalizer)
	return r.client.Update(ctx, poster)
}

// hooks are the admission webhooks.
type hooks struct{}

// Default gives a text.
func (hooks) Default(_ context.Context, poster *Poster) error {
	if poster.Spec.Text == "" {
		poster.Spec.Text = "untitled"
	}
	return nil
}

// ValidateCreate refuses posters that are too large.
func (hooks) ValidateCreate(_ context.Context, poster *Poster) (admission.Warnings, error) {
	if poster.Spec.Width > 1000 || poster.Spec.Height > 1000 {
		return nil, fmt.Errorf("%d by %d cm: no paper is that large", poster.Spec.Width, poster.Spec.Height)
	}
	return nil, nil
}

// ValidateUpdate does the same.
func (h hooks) ValidateUpdate(ctx context.Context, _, poster *Poster) (admission.Warnings, error) {
	return h.ValidateCreate(ctx, poster)
}

// ValidateDelete refuses nothing.
func (hooks) ValidateDelete(context.Context, *Poster) (admission.Warnings, error) { return nil, nil }
