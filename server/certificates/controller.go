package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

// workers of the queue: a key is a read, a signature and a write.
const workers = 4

// Options are what the controller needs beside clients and informers. All but Clock are required.
type Options struct {
	// Sign returns the certificate, as PEM, of a user of a workspace, for a request that was checked and approved.
	Sign func(workspace logicalcluster.Name, request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, lifetime time.Duration) ([]byte, error)
	// Reserved says whether a user or group cannot be somebody by a certificate of a workspace.
	Reserved func(name string) bool
	// Longest is how long certificates last that do not ask for less.
	Longest time.Duration
	Clock   clock.PassiveClock
}

// Controller signs and deletes the CertificateSigningRequests of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	options   Options
	feed      *client.Feed[*certificatesv1.CertificateSigningRequest]
	requests  *queue.Queue[client.Key]
}

// New returns the controller.
func New(clients *client.Clients, informers *client.Informers, opts Options) (*Controller, error) {
	if opts.Sign == nil || opts.Reserved == nil || opts.Longest < shortest {
		return nil, fmt.Errorf("certificates: Sign, Reserved and a Longest of at least %s are required", shortest)
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	c := &Controller{clients: clients, informers: informers, options: opts}
	c.requests = queue.NewWithClock("certificate-signing-requests", opts.Clock, c.handle)
	var err error
	c.feed, err = client.NewFeed(clients, &certificatesv1.CertificateSigningRequest{}, func(r *certificatesv1.CertificateSigningRequest, gone bool) {
		if !gone {
			c.requests.Add(client.KeyOf(r))
		}
	})
	return c, err
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.requests.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.feed.Run(ctx) })
	wg.Go(func() { c.requests.Run(ctx, workers) })
	wg.Wait()
	return nil
}

// handle does what is due for a request.
func (c *Controller) handle(ctx context.Context, key client.Key) (time.Duration, error) {
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster); !is || err != nil {
		return 0, err
	}
	ctx = client.In(ctx, key.Cluster)
	requests := c.clients.Kube.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read CertificateSigningRequest %s: %w", key, err)
	}
	now := c.options.Clock.Now()
	todo := decide(r, now)
	switch {
	case todo.remove:
		err = requests.Delete(ctx, key.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete the old CertificateSigningRequest %s: %w", key, err)
		}
	case todo.sign:
		if err := c.answer(key.Cluster, r, now); err != nil {
			return 0, fmt.Errorf("sign CertificateSigningRequest %s: %w", key, err)
		}
		// Of its own write the feed tells, and then it is known when the request is to go.
		if _, err := requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("answer CertificateSigningRequest %s: %w", key, err)
		}
	}
	return todo.again, nil
}

// answer puts the certificate into the status of a request, or why there is none.
func (c *Controller) answer(workspace logicalcluster.Name, r *certificatesv1.CertificateSigningRequest, now time.Time) error {
	asked, err := certificates.ParseCSR(r.Spec.Request)
	if err == nil {
		err = check(r.Spec.Usages, asked, c.options.Reserved)
	}
	if err != nil {
		failed(r, err, now)
		return nil
	}
	signed, err := c.options.Sign(workspace, asked, r.Spec.Usages, lifetime(r.Spec.ExpirationSeconds, c.options.Longest))
	if err == nil && len(signed) == 0 {
		err = errors.New("nothing was signed")
	}
	r.Status.Certificate = signed
	return err
}
