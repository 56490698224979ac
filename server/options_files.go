package server

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	certutil "k8s.io/client-go/util/cert"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// validateFiles reads every file that an option names, as the server does later: a start with one that is no good is to leave nothing
// behind, and by then there are a store and keys.
func (o *Options) validateFiles() []error {
	var errs []error
	for _, given := range []struct {
		flag, file string
		read       func(file string) error
	}{
		{"--client-ca-file", o.ClientCAFile, readCertificates},
		{"--tls-cert-file", o.TLSCertFile, func(file string) error {
			if o.TLSPrivateKeyFile == "" {
				return nil // of which Validate tells
			}
			_, err := readGivenCertificate(file, o.TLSPrivateKeyFile)
			return err
		}},
		{"--token-auth-file", o.TokenAuthFile, readTokens},
		{"--authentication-config", o.Authentication.AuthenticationConfigFile, func(string) error {
			_, err := o.Authentication.ToAuthenticationConfig()
			return err
		}},
		{"--authentication-token-webhook-config-file", o.Authentication.WebHook.ConfigFile, readWebhook},
		{"--encryption-provider-config", o.Encryption.ConfigFile, o.Encryption.read},
		{"--audit-policy-file", o.Audit.PolicyFile, readAuditPolicy},
		{"--audit-webhook-config-file", o.Audit.WebhookOptions.ConfigFile, readWebhook},
		{"--tracing-config-file", o.Tracing.ConfigFile, readTracing},
	} {
		if given.file == "" {
			continue
		}
		info, err := os.Stat(given.file)
		if err == nil && info.IsDir() {
			err = errors.New("want a file, not a directory")
		}
		if err == nil && info.Mode().IsRegular() { // a pipe gives what it has once
			err = given.read(given.file)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", given.flag, given.file, err))
		}
	}
	return errs
}

func readCertificates(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = certutil.ParseCertsPEM(content)
	return err
}

func readTokens(file string) error {
	_, err := tokenfile.NewCSV(file)
	return err
}

// readWebhook reads the kubeconfig of a webhook that the server calls.
func readWebhook(file string) error {
	_, err := webhookutil.LoadKubeconfig(file, nil)
	return err
}

func readAuditPolicy(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = auditpolicy.LoadPolicyFromBytes(content)
	return err
}

func readTracing(file string) error {
	config, err := genericoptions.ReadTracingConfiguration(file)
	if err != nil {
		return err
	}
	return tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil).ToAggregate()
}

// read reads the file as upstream's LoadEncryptionConfig does, which would begin to ask the plugins in it.
func (o *EncryptionOptions) read(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(apiserver.AddToScheme(scheme))
	utilruntime.Must(apiserverv1.AddToScheme(scheme))
	decoded, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), content)
	if err != nil {
		return err
	}
	config, is := decoded.(*apiserver.EncryptionConfiguration)
	if !is {
		return fmt.Errorf("want an EncryptionConfiguration, not %T", decoded)
	}
	return apiservervalidation.ValidateEncryptionConfiguration(config, o.AutomaticReload).ToAggregate()
}
