package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	cliflag "k8s.io/component-base/cli/flag"
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

// encrypt returns what encrypts the values of each resource, nil if nothing does, and adds its checks and its reload to config. ctx is
// for as long as values are read and written.
func (s *Server) encrypt(ctx context.Context, config *genericapiserver.Config) (value.ResourceTransformers, error) {
	o := s.options.Encryption
	if o.ConfigFile == "" {
		return nil, nil
	}
	fail := func(err error) (value.ResourceTransformers, error) {
		return nil, fmt.Errorf("read --encryption-provider-config %q: %w", o.ConfigFile, err)
	}
	// What is read from the file ends when a later reading takes its place; the reload, and what is never replaced, with ctx.
	reading, cancel := context.WithCancel(ctx)
	loaded, err := encryptionconfig.LoadEncryptionConfig(reading, o.ConfigFile, o.AutomaticReload, config.APIServerID)
	if err != nil {
		cancel()
		return fail(err)
	}
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
			go reload.run(ctx)
			return nil
		})
		if err != nil {
			cancel()
			return fail(err)
		}
		transformers, checks = dynamic, []healthz.HealthChecker{dynamic}
	} else {
		context.AfterFunc(ctx, cancel) // of the same moment: nobody replaces it
	}
	checks = append(checks, healthz.NamedCheck("encryption", func(req *http.Request) error { return encrypts(req.Context(), transformers) }))
	config.HealthzChecks = append(config.HealthzChecks, checks...)
	config.ReadyzChecks = append(config.ReadyzChecks, checks...)
	return transformers, nil
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
