package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// renewEvery is how often it is looked whether a certificate of the server's own has less than leafRenewal left. A timer
	// until then would stand still with a machine that sleeps.
	renewEvery = 12 * time.Hour
	// renewAgain is how soon it is tried again where one could not be made, as on a full disk.
	renewAgain = time.Hour
)

// ownCertificates are those that the server has issued itself: the one that it serves with, and others that are files only.
// Upstream runs it with the port, and serves with the newest from the next connection on.
type ownCertificates struct {
	clock clock.WithTicker
	issue func() (keyPair, error) // the one to serve with: the same until it is near its end
	// also are makers of others, each with its name.
	also map[string]func() error

	serving   atomic.Pointer[keyPair]
	mu        sync.Mutex // guards listeners
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = (*ownCertificates)(nil)
	_ dynamiccertificates.ControllerRunner       = (*ownCertificates)(nil)
)

// newOwnCertificates returns those of a server, of which one to serve with is there.
func newOwnCertificates(c clock.WithTicker, issue func() (keyPair, error), also map[string]func() error) (*ownCertificates, error) {
	first, err := issue()
	if err != nil {
		return nil, err
	}
	o := &ownCertificates{clock: c, issue: issue, also: also}
	o.serving.Store(&first)
	return o, nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (*ownCertificates) Name() string { return "serving" }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (o *ownCertificates) CurrentCertKeyContent() (certificate, key []byte) {
	pair := o.serving.Load()
	return pair.certPEM, pair.keyPEM
}

// AddListener implements dynamiccertificates.Notifier.
func (o *ownCertificates) AddListener(listener dynamiccertificates.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = append(o.listeners, listener)
}

// RunOnce implements dynamiccertificates.ControllerRunner. All were made a moment ago, by New.
func (*ownCertificates) RunOnce(context.Context) error { return nil }

// Run implements dynamiccertificates.ControllerRunner: it makes certificates anew before they end, until ctx does.
func (o *ownCertificates) Run(ctx context.Context, _ int) {
	timer := o.clock.NewTimer(renewEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-ctx.Done():
			return
		}
		next := renewEvery
		if !o.renew(ctx) {
			next = renewAgain
		}
		timer.Reset(next)
	}
}

// renew makes anew what is near its end, and says whether it could.
func (o *ownCertificates) renew(ctx context.Context) (ok bool) {
	logger, ok := klog.FromContext(ctx), true
	pair, err := o.issue()
	switch before := o.serving.Load(); {
	case err != nil:
		logger.Error(err, "The server's certificate cannot be made anew, will try again", "file", before.certFile)
		ok = false
	case string(pair.certPEM) != string(before.certPEM):
		o.serving.Store(&pair)
		logger.Info("The server's certificate is made anew", "file", pair.certFile)
		o.mu.Lock()
		for _, listener := range o.listeners {
			listener.Enqueue()
		}
		o.mu.Unlock()
	}
	for name, renew := range o.also {
		if err := renew(); err != nil {
			logger.Error(err, "A certificate of the server's own cannot be made anew, will try again", "of", name)
			ok = false
		}
	}
	return ok
}
