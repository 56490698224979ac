package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

const encryptionHead = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [secrets]
    providers:
`

func TestOptionsValidate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		mustWrite(t, filepath.Join(dir, name), content)
		return filepath.Join(dir, name)
	}
	nonsense := write("nonsense", "kind: Nonsense\n")
	tests := map[string]struct {
		change func(*Options)
		wants  []string // all in the errors; none means valid
	}{
		"defaults":                      {change: func(*Options) {}},
		"free port":                     {change: func(o *Options) { o.SecurePort = 0 }},
		"no root directory":             {change: func(o *Options) { o.RootDirectory = "" }, wants: []string{"--root-directory"}},
		"negative port":                 {change: func(o *Options) { o.SecurePort = -1 }, wants: []string{"--secure-port -1"}},
		"too great a port":              {change: func(o *Options) { o.SecurePort = 65536 }, wants: []string{"--secure-port 65536"}},
		"negative requests at once":     {change: func(o *Options) { o.MaxRequestsInFlight = -1 }, wants: []string{"--max-requests-inflight -1"}},
		"no watches":                    {change: func(o *Options) { o.MaxWatchesPerWorkspace = 0 }, wants: []string{"--max-watches-per-workspace 0"}},
		"negative definition bytes":     {change: func(o *Options) { o.MaxDefinitionBytesPerWorkspace = -1 }, wants: []string{"--max-definition-bytes-per-workspace -1"}},
		"negative definitions":          {change: func(o *Options) { o.MaxDefinitionsPerWorkspace = -1 }, wants: []string{"--max-definitions-per-workspace -1"}},
		"negative objects":              {change: func(o *Options) { o.MaxObjectsPerWorkspace = -1 }, wants: []string{"--max-objects-per-workspace -1"}},
		"no more than all at once":      {change: func(o *Options) { o.MaxRequestsInFlight, o.MaxRequestsInFlightPerWorkspace = 16, 16 }},
		"more than all at once":         {change: func(o *Options) { o.MaxRequestsInFlight, o.MaxRequestsInFlightPerWorkspace = 16, 17 }, wants: []string{"--max-requests-inflight-per-workspace 17", "the 16 of all workspaces", "--max-requests-inflight"}},
		"more than all of this machine": {change: func(o *Options) { o.MaxRequestsInFlightPerWorkspace = 100_000 }},
		"negative bytes":                {change: func(o *Options) { o.MaxBytesPerWorkspace = -1 }, wants: []string{"--max-bytes-per-workspace -1"}},
		"negative bytes of a cluster":   {change: func(o *Options) { o.MaxBytesPerPhysicalCluster = -1 }, wants: []string{"--max-bytes-per-physical-cluster -1"}},
		"no limit of a cluster":         {change: func(o *Options) { o.MaxBytesPerPhysicalCluster = 0 }},
		"no limit on objects or bytes":  {change: func(o *Options) { o.MaxObjectsPerWorkspace, o.MaxBytesPerWorkspace = 0, 0 }},
		"no address":                    {change: func(o *Options) { o.BindAddress = nil }, wants: []string{"--bind-address"}},
		"external name":                 {change: func(o *Options) { o.ExternalHostname = "Atoll.example.com" }},
		"external address":              {change: func(o *Options) { o.ExternalHostname = "2001:db8::1" }},
		"external URL":                  {change: func(o *Options) { o.ExternalHostname = "https://atoll.example.com" }, wants: []string{"--external-hostname", "https://atoll.example.com"}},
		"external port":                 {change: func(o *Options) { o.ExternalHostname = "atoll:6443" }, wants: []string{"--external-hostname", "atoll:6443"}},
		"missing CA file":               {change: func(o *Options) { o.ClientCAFile = filepath.Join(dir, "no-ca") }, wants: []string{"--client-ca-file", "no-ca"}},
		"a certificate without a key":   {change: func(o *Options) { o.TLSCertFile = nonsense }, wants: []string{"--tls-cert-file", "nonsense", "--tls-private-key-file \"\""}},
		"a key without a certificate":   {change: func(o *Options) { o.TLSPrivateKeyFile = nonsense }, wants: []string{"--tls-cert-file \"\"", "--tls-private-key-file"}},
		"no certificate":                {change: func(o *Options) { o.TLSCertFile, o.TLSPrivateKeyFile = nonsense, nonsense }, wants: []string{"--tls-cert-file", "nonsense"}},
		"missing token file":            {change: func(o *Options) { o.TokenAuthFile = filepath.Join(dir, "no-tokens") }, wants: []string{"--token-auth-file", "no-tokens"}},
		"missing configuration of OIDC": {change: func(o *Options) { o.Authentication.AuthenticationConfigFile = filepath.Join(dir, "no-oidc") }, wants: []string{"--authentication-config", "no-oidc"}},
		"missing webhook":               {change: func(o *Options) { o.Authentication.WebHook.ConfigFile = filepath.Join(dir, "no-hook") }, wants: []string{"--authentication-token-webhook-config-file", "no-hook"}},
		"issuer":                        {change: func(o *Options) { o.ServiceAccountIssuers = []string{"https://atoll.example.com", "https://old:6443"} }},
		"issuer with a path":            {change: func(o *Options) { o.ServiceAccountIssuers = []string{"https://atoll.example.com/clusters/root"} }, wants: []string{"--service-account-issuer", "https://atoll.example.com/clusters/root"}},
		"endless tokens":                {change: func(o *Options) { o.ServiceAccountMaxTokenExpiration = 0 }, wants: []string{"--service-account-max-token-expiration 0s"}},
		"directory for a file":          {change: func(o *Options) { o.TokenAuthFile = dir }, wants: []string{"--token-auth-file", dir}},
		"encryption without a file":     {change: func(o *Options) { o.Encryption.AutomaticReload = true }, wants: []string{"--encryption-provider-config-automatic-reload", "names no file"}},
		"encryption by a missing file":  {change: func(o *Options) { o.Encryption.ConfigFile = "nowhere" }, wants: []string{"--encryption-provider-config", "nowhere"}},
		"tracing by a missing file":     {change: func(o *Options) { o.Tracing.ConfigFile = "nowhere" }, wants: []string{"tracing-config-file", "nowhere"}},
		"delay of the end":              {change: func(o *Options) { o.ShutdownDelay = -time.Second }, wants: []string{"--shutdown-delay-duration"}},
		"audit":                         {change: func(o *Options) { o.Audit.LogOptions.Path = "x"; o.Audit.LogOptions.MaxAge = -1 }, wants: []string{"--audit-log-maxage"}},
		"audit policy for no log":       {change: func(o *Options) { o.Audit.PolicyFile = "p" }, wants: []string{"--audit-policy-file", "--audit-log-path"}},
		"audit log without a policy":    {change: func(o *Options) { o.Audit.LogOptions.Path = "l" }, wants: []string{"--audit-log-path", "--audit-policy-file"}},
		"audit hook without a policy":   {change: func(o *Options) { o.Audit.WebhookOptions.ConfigFile = "w" }, wants: []string{"--audit-webhook-config-file", "--audit-policy-file"}},
		"token file":                    {change: func(o *Options) { o.TokenAuthFile = write("tokens", "t,ann,1,\"a,b\"\n") }},
		"short rows of tokens":          {change: func(o *Options) { o.TokenAuthFile = write("short", "t,ann\n") }, wants: []string{"--token-auth-file", "short", "token, user name, user uid"}},
		"CA file without a certificate": {change: func(o *Options) { o.ClientCAFile = nonsense }, wants: []string{"--client-ca-file", nonsense, "certificates"}},
		"bad configuration of OIDC":     {change: func(o *Options) { o.Authentication.AuthenticationConfigFile = nonsense }, wants: []string{"--authentication-config", nonsense}},
		"bad webhook of tokens":         {change: func(o *Options) { o.Authentication.WebHook.ConfigFile = write("empty", "") }, wants: []string{"--authentication-token-webhook-config-file", "empty"}},
		"encryption by nonsense":        {change: func(o *Options) { o.Encryption.ConfigFile = nonsense }, wants: []string{"--encryption-provider-config", nonsense}},
		"encryption without a key": {change: func(o *Options) {
			o.Encryption.ConfigFile = write("keyless", encryptionHead+"    - secretbox: {keys: []}\n")
		}, wants: []string{"--encryption-provider-config", "keyless", "keys"}},
		"encryption":             {change: func(o *Options) { o.Encryption.ConfigFile = write("plain", encryptionHead+"    - identity: {}\n") }},
		"audit by nonsense":      {change: func(o *Options) { o.Audit.PolicyFile, o.Audit.LogOptions.Path = nonsense, filepath.Join(dir, "log") }, wants: []string{"--audit-policy-file", nonsense}},
		"tracing by nonsense":    {change: func(o *Options) { o.Tracing.ConfigFile = nonsense }, wants: []string{"--tracing-config-file", nonsense}},
		"several faults at once": {change: func(o *Options) { o.SecurePort, o.RootDirectory = -1, "" }, wants: []string{"--secure-port", "--root-directory"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			test.change(o)
			err := errors.Join(o.Validate()...)
			if (err != nil) != (len(test.wants) > 0) {
				t.Fatalf("error %v, want %v", err, test.wants)
			}
			for _, want := range test.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestOptionsFlags(t *testing.T) {
	o := NewOptions()
	fss := cliflag.NamedFlagSets{}
	o.AddFlags(&fss)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range fss.FlagSets {
		flags.AddFlagSet(set)
	}
	// kube-apiserver's and kcp's names.
	err := flags.Parse([]string{"--root-directory=r", "--kubeconfig-path=k", "--bind-address=0.0.0.0", "--secure-port=0",
		"--external-hostname=e", "--client-ca-file=c", "--token-auth-file=t", "--audit-policy-file=p", "--audit-log-path=l",
		"--encryption-provider-config=x", "--encryption-provider-config-automatic-reload", "--tracing-config-file=y", "--shutdown-delay-duration=3s", "--shutdown-send-retry-after",
		"--webhook-allowed-addresses=127.0.0.1,10.0.0.0/8", "--webhook-refused-addresses=192.0.2.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	if o.RootDirectory != "r" || o.KubeconfigPath != "k" || !o.BindAddress.IsUnspecified() || o.SecurePort != 0 || o.ExternalHostname != "e" ||
		o.ClientCAFile != "c" || o.TokenAuthFile != "t" || o.Audit.PolicyFile != "p" || o.Audit.LogOptions.Path != "l" ||
		o.Encryption != (EncryptionOptions{ConfigFile: "x", AutomaticReload: true}) || o.Tracing.ConfigFile != "y" || o.ShutdownDelay != 3*time.Second || !o.ShutdownSendRetryAfter ||
		len(o.WebhookAllowedAddresses) != 2 || len(o.WebhookRefusedAddresses) != 1 {
		t.Errorf("flags do not reach their options: %+v", o)
	}
}

// Numbers of bytes are written as everybody writes them.
func TestBytes(t *testing.T) {
	for given, want := range map[string]int64{
		"64Mi": 64 << 20, "1Gi": 1 << 30, "1048576": 1 << 20, "1M": 1_000_000, "0": 0, "-1": -1, "1.5Ki": 1536, // what makes no sense is refused later
		"1Mb": -2, "": -2, "64 Mi": -2, "1m": -2, "0.5": -2, "9Ei": -2, "99999999999999999999": -2, // -2 is an error
	} {
		n := int64(-2)
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.Var(Bytes(&n), "max-bytes-per-workspace", "")
		err := flags.Parse([]string{"--max-bytes-per-workspace", given})
		if n != want || (err == nil) != (want != -2) {
			t.Errorf("%q: %d, %v; want %d", given, n, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%q: %v does not say what it wants", given, err)
		}
	}
	o := NewOptions()
	if shown := Bytes(&o.MaxBytesPerWorkspace).String(); shown != "256Mi" {
		t.Errorf("the default is shown as %q", shown)
	}
}

func TestExternalHost(t *testing.T) {
	tests := map[string]struct {
		bind     net.IP
		external string
		want     string
	}{
		"address":       {bind: net.IPv4(10, 0, 0, 1), want: "10.0.0.1"},
		"every address": {bind: net.IPv4zero, want: "127.0.0.1"},
		"every IPv6":    {bind: net.IPv6unspecified, want: "127.0.0.1"},
		"name":          {bind: net.IPv4zero, external: "atoll.example.com", want: "atoll.example.com"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := &Options{BindAddress: test.bind, ExternalHostname: test.external}
			if got := o.externalHost(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestOptionsReadable: files with secrets that others on the machine can read are told, and no others.
func TestOptionsReadable(t *testing.T) {
	dir := t.TempDir()
	o := NewOptions()
	o.TokenAuthFile, o.Encryption.ConfigFile, o.ClientCAFile = filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "encryption.yaml"), filepath.Join(dir, "ca.crt")
	for file, mode := range map[string]os.FileMode{o.TokenAuthFile: 0o644, o.Encryption.ConfigFile: 0o600, o.ClientCAFile: 0o644} {
		mustWrite(t, file, "x")
		must(t, os.Chmod(file, mode))
	}
	if got := o.Readable(); len(got) != 1 || !strings.Contains(got[0], "--token-auth-file") || !strings.Contains(got[0], "chmod 600 "+o.TokenAuthFile) {
		t.Errorf("%q, want the file with tokens alone", got)
	}
	must(t, os.Chmod(o.Encryption.ConfigFile, 0o604))
	if got := o.Readable(); len(got) != 2 || !strings.Contains(got[1], "--encryption-provider-config") {
		t.Errorf("%q, want both", got)
	}
	file := func(name string) string {
		mustWrite(t, filepath.Join(dir, name), "x")
		must(t, os.Chmod(filepath.Join(dir, name), 0o644))
		return filepath.Join(dir, name)
	}
	o.TLSPrivateKeyFile, o.Authentication.WebHook.ConfigFile, o.Audit.WebhookOptions.ConfigFile = file("tls.key"), file("people.kubeconfig"), file("audit.kubeconfig")
	got := strings.Join(o.Readable(FileOfFlag{"--etcd-keyfile", file("etcd.key")}), "\n")
	for _, flag := range []string{"--tls-private-key-file", "--authentication-token-webhook-config-file", "--audit-webhook-config-file", "--etcd-keyfile"} {
		if !strings.Contains(got, flag+" "+dir) {
			t.Errorf("%s is not among\n%s", flag, got)
		}
	}
}
