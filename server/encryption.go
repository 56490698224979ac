package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// EncryptionOptions say how values are encrypted in etcd, by kube-apiserver's flags and its file. What the file says of a
// resource counts for it in all logical clusters; the row's key, in which the logical cluster is, is authenticated with
// the value, so that a row copied to another logical cluster is nothing there. The installation's own secrets, such as the keys that
// sign tokens, are encrypted as Secrets are.
type EncryptionOptions struct {
	// ConfigFile is an EncryptionConfiguration; empty means that nothing is encrypted.
	ConfigFile string
	// AutomaticReload takes up a changed file within a minute.
	AutomaticReload bool
}

func (o *EncryptionOptions) addFlags(fss *cliflag.NamedFlagSets) {
	fs := fss.FlagSet("encryption")
	fs.StringVar(&o.ConfigFile, "encryption-provider-config", o.ConfigFile, "File with an EncryptionConfiguration, which says what is encrypted in etcd and with which keys. A backup does not hold it: keep the keys of every backup, and in another place than the backup.")
	fs.BoolVar(&o.AutomaticReload, "encryption-provider-config-automatic-reload", o.AutomaticReload, "Take up a changed --encryption-provider-config within a minute.")
}

func (o *EncryptionOptions) validate() []error {
	if o.AutomaticReload && o.ConfigFile == "" {
		return []error{errors.New("--encryption-provider-config-automatic-reload: --encryption-provider-config names no file")}
	}
	return nil
}

// encrypt returns what encrypts the values of each resource, nil if nothing does, and adds its checks and its reload to config. encrypting
// is for as long as values are read and written, ctx for the call, which waits a moment for key management.
func (s *Server) encrypt(ctx, encrypting context.Context, config *genericapiserver.Config) (value.ResourceTransformers, error) {
	o := s.options.Encryption
	if o.ConfigFile == "" {
		return nil, nil
	}
	fail := func(err error) (value.ResourceTransformers, error) {
		return nil, fmt.Errorf("read --encryption-provider-config %q: %w", o.ConfigFile, err)
	}
	// What is read from the file ends when a later reading takes its place; the reload, and what is never replaced, with encrypting.
	reading, cancel := context.WithCancel(encrypting)
	loaded, err := encryptionconfig.LoadEncryptionConfig(reading, o.ConfigFile, o.AutomaticReload, config.APIServerID)
	if err != nil {
		cancel()
		return fail(err)
	}
	s.noKMS = answering(ctx, loaded.HealthChecks)
	s.rewrites = newRewrites(loaded.EncryptionFileContentHash)
	var transformers value.ResourceTransformers = encryptionconfig.StaticTransformers(loaded.Transformers)
	checks := loaded.HealthChecks
	if o.AutomaticReload {
		if len(loaded.HealthChecks) != 1 {
			cancel()
			return fail(fmt.Errorf("%d checks of health for one file", len(loaded.HealthChecks)))
		}
		dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], cancel, loaded.KMSCloseGracePeriod)
		reload := &reload{
			file: o.ConfigFile, server: config.APIServerID, transformers: dynamic,
			taken: loaded.EncryptionFileContentHash, took: s.rewrites.took, reads: func(ctx context.Context, t value.ResourceTransformers) error {
				return s.backend.Readable(ctx, t)
			},
		}
		err := config.AddPostStartHook("encryption-provider-config-reload", func(genericapiserver.PostStartHookContext) error {
			go reload.run(encrypting)
			return nil
		})
		if err != nil {
			cancel()
			return fail(err)
		}
		transformers, checks = dynamic, []healthz.HealthChecker{dynamic}
	} else {
		context.AfterFunc(encrypting, cancel) // of the same moment: nobody replaces it
	}
	s.keyManagement = checks
	checks = append(slices.Clone(checks), checksEncryption(transformers, clock.RealClock{}))
	config.HealthzChecks = append(config.HealthzChecks, checks...)
	config.ReadyzChecks = append(config.ReadyzChecks, checks...)
	return transformers, nil
}

// checksEncryption checks that what is encrypted can be decrypted, once a second at most: anybody may look, and with some
// providers each look is a call to the key management.
func checksEncryption(transformers value.ResourceTransformers, c clock.PassiveClock) healthz.HealthChecker {
	tries := newProbe(time.Second, c, func(ctx context.Context) error { return encrypts(ctx, transformers) })
	return healthz.NamedCheck("encryption", func(req *http.Request) error { return tries.check(req.Context()) })
}

// answering waits until key management answers, which may have been started with this server, and returns why it does not after
// kmsPatience. That alone is no reason not to start: it may be there to read rows of which none are left.
func answering(ctx context.Context, checks []healthz.HealthChecker) error {
	patience := time.NewTimer(kmsPatience)
	defer patience.Stop()
	again := time.NewTicker(kmsAgain)
	defer again.Stop()
	for {
		silent := healthy(ctx, checks)
		if silent == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // nobody waits any more
		case <-patience.C:
			return silent
		case <-again.C:
		}
	}
}

// healthy returns what the checks that fail say.
func healthy(ctx context.Context, checks []healthz.HealthChecker) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil)
	if err != nil {
		return err
	}
	var failed []error
	for _, check := range checks {
		if err := check.Check(req); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", check.Name(), err))
		}
	}
	return errors.Join(failed...)
}

// mend has rows read again that could not be decrypted when they were read, until ctx ends. It waits for all key management to answer, and
// longer each time that it was of no use: of rows that are spoilt nothing comes.
func (s *Server) mend(ctx context.Context) {
	for wait := rewriteAgain; ; {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if !s.backend.HasLost() || healthy(ctx, s.keyManagement) != nil {
			wait = rewriteAgain
			continue
		}
		mended, err := s.backend.Mend(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Rows that can be decrypted again are not all read again; trying again", "in", rewriteAgain)
		}
		if wait = min(2*wait, rewriteAgainMost); mended > 0 || err != nil {
			wait = rewriteAgain
		}
	}
}

// encrypts returns an error unless what is encrypted as a Secret now can be decrypted. Nothing is stored.
func encrypts(ctx context.Context, transformers value.ResourceTransformers) error {
	plain, key := []byte("probe"), value.DefaultContext("/registry/secrets/probe")
	secrets := transformers.TransformerForResource(schema.GroupResource{Resource: "secrets"})
	written, err := secrets.TransformToStorage(ctx, plain, key)
	if err != nil {
		return fmt.Errorf("encrypt: %w", err)
	}
	read, _, err := secrets.TransformFromStorage(ctx, written, key)
	if err != nil {
		return fmt.Errorf("decrypt what was encrypted: %w", err)
	}
	if !bytes.Equal(read, plain) {
		return errors.New("what was encrypted is another value when it is decrypted")
	}
	return nil
}
