package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/server/builtin"
	"atoll.dev/atoll/server/fairness"
	"atoll.dev/atoll/server/identity"
	"atoll.dev/atoll/server/webhooks"
)

// DefaultSecurePort is the port of the API when none is given: kcp's and kubeadm's.
const DefaultSecurePort = 6443

// maxTokenExpiration is the most that a TokenRequest can ask for.
const maxTokenExpiration = (1 << 32) * time.Second

// Options are what a person may choose about the API server. NewOptions shows every default.
type Options struct {
	// RootDirectory holds everything the server keeps on disk: the embedded etcd, keys and certificates, admin.kubeconfig.
	RootDirectory string
	// KubeconfigPath of the administrator's kubeconfig; empty means admin.kubeconfig in RootDirectory.
	KubeconfigPath string
	// BindAddress and SecurePort of the API. Port 0 takes a free one.
	BindAddress net.IP
	SecurePort  int
	// ExternalHostname is the name or address that kubeconfigs and URLs in status show; empty means BindAddress, or
	// 127.0.0.1 where that is every address.
	ExternalHostname string
	// TLSCertFile and TLSPrivateKeyFile are a certificate that clients are shown who ask for a name in it, and its key. Everybody
	// else is shown the server's own. They are read again when they change. The root authorities that the file has behind the
	// certificate go into kubeconfigs, beside the server's own.
	TLSCertFile, TLSPrivateKeyFile string
	// ClientCAFile holds further certificate authorities of client certificates, besides the server's own.
	ClientCAFile string
	// TokenAuthFile holds static tokens, as kube-apiserver's: token,user,uid,"group1,group2".
	TokenAuthFile string

	// Authentication is what else authenticates people: --authentication-config, a webhook, and audiences. Its options for
	// static tokens, client certificates and ServiceAccounts are not used.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	// ServiceAccountIssuers are URLs of this server, without a path, that issuers of tokens begin with: the first in new
	// tokens, the others accepted. Empty means the URL by ExternalHostname and the port.
	ServiceAccountIssuers []string
	// ServiceAccountMaxTokenExpiration is the longest that a token of a ServiceAccount is valid.
	ServiceAccountMaxTokenExpiration time.Duration

	// MaxRequestsInFlight is how many requests to workspaces the server works on at once, and MaxRequestsInFlightPerWorkspace
	// how many of one; others wait. 0 means as many as the machine can use, and half of them.
	MaxRequestsInFlight             int
	MaxRequestsInFlightPerWorkspace int
	// MaxWatchesPerWorkspace is how many watches one workspace may have open.
	MaxWatchesPerWorkspace int
	// MaxDefinitionsPerWorkspace is how many CustomResourceDefinitions one workspace may have.
	MaxDefinitionsPerWorkspace int
	// MaxDefinitionBytesPerWorkspace is how much memory they may take together, decoded and compiled, by estimate.
	MaxDefinitionBytesPerWorkspace int64
	// MaxObjectsPerWorkspace and MaxBytesPerWorkspace are what one workspace may have in etcd; 0 is no limit.
	MaxObjectsPerWorkspace, MaxBytesPerWorkspace int64
	// HomeWorkspaces are the groups whose members get a workspace of their own when they first ask for it; nobody if there is none.
	HomeWorkspaces []string
	// WebhookAllowedAddresses and WebhookRefusedAddresses are ranges of addresses, or single ones, where the conversion and
	// admission webhooks of workspaces may and may not be. The first win, and those that are refused without being named
	// (loopback, link-local) have to be among them.
	WebhookAllowedAddresses, WebhookRefusedAddresses []string

	// MaxBytesPerPhysicalCluster is how much memory, about, the server gives to what one physical cluster that it reaches shows; 0
	// is no limit.
	MaxBytesPerPhysicalCluster int64

	// SyncerSigningDuration is how long the certificates of syncers outside this process last; they are renewed before.
	SyncerSigningDuration time.Duration
	// ClusterSigningDuration is the longest, and the default, that certificates of a workspace last.
	ClusterSigningDuration time.Duration

	// EventTTL is how long Events are kept.
	EventTTL time.Duration

	// SharedStore says that other servers may use the same etcd.
	SharedStore bool
	// CompareAuthorities refuses a start with other certificate authorities than those of what is stored, unless
	// ReplaceAuthorities.
	CompareAuthorities, ReplaceAuthorities bool
	// StoreDamage, if set, returns an error if rows of the store are known not to be what was written.
	StoreDamage func() error

	Audit *genericoptions.AuditOptions
	// Encryption of values in etcd.
	Encryption EncryptionOptions
	// Tracing sends spans of requests to a collector.
	Tracing *genericoptions.TracingOptions

	// ShutdownDelay is how long a server that is to end serves on as ever, with /readyz saying that it ends, so that balancers turn
	// away from it first. ShutdownSendRetryAfter has it answer what comes later with 429 and Retry-After until the requests in
	// flight are done, rather than close its port.
	ShutdownDelay          time.Duration
	ShutdownSendRetryAfter bool

	clock   clock.WithTicker // by which the server's own certificates are made anew
	etcdTLS bool             // there is one of the embedded etcd's among them
}

// NewOptions returns the defaults. It gives features other defaults, too, so it is called before flags are read.
func NewOptions() *Options {
	overrideFeatures()
	return &Options{
		RootDirectory: ".atoll",
		BindAddress:   net.IPv4(127, 0, 0, 1),
		SecurePort:    DefaultSecurePort,
		Audit:         genericoptions.NewAuditOptions(),
		Tracing:       genericoptions.NewTracingOptions(),

		Authentication:                   kubeoptions.NewBuiltInAuthenticationOptions().WithWebHook(),
		ServiceAccountMaxTokenExpiration: 30 * 24 * time.Hour,

		MaxWatchesPerWorkspace:         fairness.DefaultWatches,
		MaxDefinitionsPerWorkspace:     500, // large operators bring a hundred
		MaxDefinitionBytesPerWorkspace: 256 << 20,
		MaxObjectsPerWorkspace:         100_000,
		MaxBytesPerWorkspace:           256 << 20, // some twenty such fill etcd, whose backend is best kept below 8 GiB

		MaxBytesPerPhysicalCluster: 1 << 30, // some 100,000 Deployments; twice that while they are listed anew

		SyncerSigningDuration: 30 * 24 * time.Hour, // outlasts an outage of days: it is renewed from 70 % on

		ClusterSigningDuration: 365 * 24 * time.Hour,
		EventTTL:               builtin.DefaultEventTTL,

		clock: clock.RealClock{},
	}
}

// AddFlags adds the options to fss, grouped as people see them in help.
func (o *Options) AddFlags(fss *cliflag.NamedFlagSets) {
	fs := fss.FlagSet("serving")
	fs.StringVar(&o.RootDirectory, "root-directory", o.RootDirectory, "Directory of everything the server keeps: data, keys and certificates, admin.kubeconfig.")
	fs.StringVar(&o.KubeconfigPath, "kubeconfig-path", o.KubeconfigPath, "File to write the administrator's kubeconfig to; directories that are missing above it are made (default admin.kubeconfig in --root-directory).")
	fs.IPVar(&o.BindAddress, "bind-address", o.BindAddress, "Address to listen on. Other machines reach the server only if it is not a loopback address.")
	fs.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "Port to serve HTTPS on; 0 takes a free one.")
	fs.StringVar(&o.ExternalHostname, "external-hostname", o.ExternalHostname, "Name or address by which clients reach the server (default --bind-address).")
	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "File with a certificate for HTTPS, and behind it those of its authorities, which clients are shown who ask for a name in it; all others are shown the server's own. Read again when it changes. The root authority in it goes into kubeconfigs.")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "File with the key of --tls-cert-file.")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay, "How long a server that is to end serves on as ever while /readyz fails, so that balancers turn away first.")
	fs.BoolVar(&o.ShutdownSendRetryAfter, "shutdown-send-retry-after", o.ShutdownSendRetryAfter, "After that time, answer new requests with 429 and Retry-After until those in flight are done, rather than close the port.")
	fs = fss.FlagSet("fairness")
	fs.IntVar(&o.MaxRequestsInFlight, "max-requests-inflight", o.MaxRequestsInFlight, "Requests to workspaces that the server works on at once; others wait, and each workspace has its turn. Long lists count for several. Those of administrators and the server's own do not count; mirrors have as many again (default 8 for each CPU).")
	fs.IntVar(&o.MaxRequestsInFlightPerWorkspace, "max-requests-inflight-per-workspace", o.MaxRequestsInFlightPerWorkspace, "How many of these one workspace may have (default half).")
	fs.IntVar(&o.MaxWatchesPerWorkspace, "max-watches-per-workspace", o.MaxWatchesPerWorkspace, "Watches that one workspace may have open, at about 100 KB of memory each.")
	fs.IntVar(&o.MaxDefinitionsPerWorkspace, "max-definitions-per-workspace", o.MaxDefinitionsPerWorkspace, "CustomResourceDefinitions that one workspace may have; administrators may make more.")
	fs.Var(Bytes(&o.MaxDefinitionBytesPerWorkspace), "max-definition-bytes-per-workspace", "Memory, about, that these may take, decoded and with their expressions compiled, as 256Mi.")
	fs.Int64Var(&o.MaxObjectsPerWorkspace, "max-objects-per-workspace", o.MaxObjectsPerWorkspace, "Objects of all kinds that one workspace may have in etcd, besides a tenth as many Events and half as many Pods; administrators may make more; 0 for no limit.")
	fs.Var(Bytes(&o.MaxBytesPerWorkspace), "max-bytes-per-workspace", "Bytes that these may take there, keys and values, Events a tenth as many and Pods half, as 256Mi or 268435456; 0 for no limit.")
	fs.Var(Bytes(&o.MaxBytesPerPhysicalCluster), "max-bytes-per-physical-cluster", "Memory, about, that may go to what a physical cluster that the server reaches shows of what runs there, as 1Gi; a cluster that shows more is not Ready; 0 for no limit.")
	fs = fss.FlagSet("workspaces")
	fs.StringSliceVar(&o.HomeWorkspaces, "home-workspaces", o.HomeWorkspaces, "Groups whose members get a workspace of their own, below root:users, when they first enter it with \"atoll workspace use\"; system:authenticated is everybody. What they make there is bounded in each workspace, and not how many they make below it (default nobody).")
	fs = fss.FlagSet("authentication")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "File with further certificate authorities whose client certificates are accepted, besides the server's own.")
	fs.StringVar(&o.TokenAuthFile, "token-auth-file", o.TokenAuthFile, `File with static tokens, one a line: token,user,uid,"group1,group2".`)
	o.Authentication.AddFlags(fs)
	fs.StringArrayVar(&o.ServiceAccountIssuers, "service-account-issuer", o.ServiceAccountIssuers, "URL of this server, https://<host>[:<port>], that issuers of tokens begin with; /clusters/<workspace> is added. Given several times, the first is in new tokens and all are accepted (default the server's URL).")
	fs.DurationVar(&o.ServiceAccountMaxTokenExpiration, "service-account-max-token-expiration", o.ServiceAccountMaxTokenExpiration, "The longest that a token of a ServiceAccount is valid; one that is asked for longer gets this. A key that signed tokens is kept as long.")
	fs.BoolVar(&o.ReplaceAuthorities, "replace-certificate-authorities", o.ReplaceAuthorities, "Start also with other certificate authorities in --root-directory than those of what is stored, as when these are lost: kubeconfigs, certificates of syncers and of users of workspaces that are of those are refused from then on. Of several servers one is started with it, while the others are stopped; they get copies of its authorities.")
	fs.DurationVar(&o.SyncerSigningDuration, "syncer-signing-duration", o.SyncerSigningDuration, "How long the certificates of syncers outside the server last; they renew them by themselves.")
	fs.DurationVar(&o.ClusterSigningDuration, "cluster-signing-duration", o.ClusterSigningDuration, "How long certificates last that CertificateSigningRequests in a workspace ask for; spec.expirationSeconds may ask for less.")
	fss.FlagSet("events").DurationVar(&o.EventTTL, "event-ttl", o.EventTTL, "How long Events are kept.")
	fs = fss.FlagSet("webhooks")
	fs.StringSliceVar(&o.WebhookAllowedAddresses, "webhook-allowed-addresses", o.WebhookAllowedAddresses, "Addresses or ranges (127.0.0.1,10.1.0.0/16) where the conversion and admission webhooks of workspaces may be although they are refused otherwise, as loopback and link-local ones are. Workspaces choose whom the server calls: allow loopback on a machine of your own only.")
	fs.StringSliceVar(&o.WebhookRefusedAddresses, "webhook-refused-addresses", o.WebhookRefusedAddresses, "Further addresses or ranges where they may not be, such as 10.0.0.0/8 to keep workspaces out of the network that the server is in.")
	o.Audit.AddFlags(fss.FlagSet("auditing"))
	o.Encryption.addFlags(fss)
	o.Tracing.AddFlags(fss.FlagSet("tracing"))
}

// Validate returns every fault, each naming the flag and its value. It reads the files that are named, and writes nothing.
func (o *Options) Validate() []error {
	var errs []error
	if o.RootDirectory == "" {
		errs = append(errs, errors.New("--root-directory is empty: name a directory, or leave the flag out for .atoll"))
	}
	// Where it cannot be looked at for another reason, whoever makes it says why.
	if info, err := os.Stat(o.RootDirectory); err == nil && !info.IsDir() || errors.Is(err, syscall.ENOTDIR) {
		errs = append(errs, fmt.Errorf("--root-directory %q: want a directory: this, or what is above it, is a file", o.RootDirectory))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d: want 1 to 65535, or 0 for a free port", o.SecurePort))
	}
	if o.MaxRequestsInFlight < 0 || o.MaxRequestsInFlightPerWorkspace < 0 {
		errs = append(errs, fmt.Errorf("--max-requests-inflight %d, --max-requests-inflight-per-workspace %d: want at least 1, or 0 for the default", o.MaxRequestsInFlight, o.MaxRequestsInFlightPerWorkspace))
	}
	// By default the whole is the machine's, which is no mistake of who gave the other: it is what one workspace has at most, too.
	if per, whole := o.MaxRequestsInFlightPerWorkspace, o.MaxRequestsInFlight; per > whole && whole > 0 {
		errs = append(errs, fmt.Errorf("--max-requests-inflight-per-workspace %d: want at most the %d of all workspaces together, or a higher --max-requests-inflight", per, whole))
	}
	if o.MaxWatchesPerWorkspace < 1 {
		errs = append(errs, fmt.Errorf("--max-watches-per-workspace %d: want at least 1", o.MaxWatchesPerWorkspace))
	}
	if o.MaxDefinitionsPerWorkspace < 0 {
		errs = append(errs, fmt.Errorf("--max-definitions-per-workspace %d: want at least 0", o.MaxDefinitionsPerWorkspace))
	}
	if o.MaxDefinitionBytesPerWorkspace < 0 {
		errs = append(errs, fmt.Errorf("--max-definition-bytes-per-workspace %d: want at least 0", o.MaxDefinitionBytesPerWorkspace))
	}
	if o.MaxObjectsPerWorkspace < 0 || o.MaxBytesPerWorkspace < 0 {
		errs = append(errs, fmt.Errorf("--max-objects-per-workspace %d, --max-bytes-per-workspace %d: want at least 1, or 0 for no limit", o.MaxObjectsPerWorkspace, o.MaxBytesPerWorkspace))
	}
	if o.MaxBytesPerPhysicalCluster < 0 {
		errs = append(errs, fmt.Errorf("--max-bytes-per-physical-cluster %d: want at least 1, or 0 for no limit", o.MaxBytesPerPhysicalCluster))
	}
	if slices.ContainsFunc(o.HomeWorkspaces, func(group string) bool { return group == "" || group == user.AllUnauthenticated }) {
		errs = append(errs, fmt.Errorf("--home-workspaces %q: want groups of users who are authenticated", strings.Join(o.HomeWorkspaces, ",")))
	}
	if o.BindAddress == nil {
		errs = append(errs, errors.New("--bind-address is not an IP address"))
	}
	if host := o.ExternalHostname; host != "" && net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		errs = append(errs, fmt.Errorf("--external-hostname %q: want a name or an address, without scheme or port", host))
	}
	if (o.TLSCertFile == "") != (o.TLSPrivateKeyFile == "") {
		errs = append(errs, fmt.Errorf("--tls-cert-file %q, --tls-private-key-file %q: give both, or neither", o.TLSCertFile, o.TLSPrivateKeyFile))
	}
	if len(o.ServiceAccountIssuers) > 0 {
		if _, err := identity.NewIssuers(o.ServiceAccountIssuers, nil); err != nil {
			errs = append(errs, fmt.Errorf("--service-account-issuer: %w", err))
		}
	}
	// The bounds are kube-apiserver's, which also knows tokens that never end: their key could never go.
	if longest := o.ServiceAccountMaxTokenExpiration; longest < time.Hour || longest > maxTokenExpiration {
		errs = append(errs, fmt.Errorf("--service-account-max-token-expiration %s: want 1h to %s", longest, maxTokenExpiration))
	}
	if o.ShutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay-duration %s: want 0 or more", o.ShutdownDelay))
	}
	if _, err := webhooks.ParsePrefixes(o.WebhookAllowedAddresses); err != nil {
		errs = append(errs, fmt.Errorf("--webhook-allowed-addresses: %w", err))
	}
	if _, err := webhooks.ParsePrefixes(o.WebhookRefusedAddresses); err != nil {
		errs = append(errs, fmt.Errorf("--webhook-refused-addresses: %w", err))
	}
	if o.SyncerSigningDuration < time.Minute {
		errs = append(errs, fmt.Errorf("--syncer-signing-duration %s: want at least a minute, since what ends too soon cannot be renewed", o.SyncerSigningDuration))
	}
	if o.ClusterSigningDuration < 10*time.Minute {
		errs = append(errs, fmt.Errorf("--cluster-signing-duration %s: want at least 10m, the shortest that a request may ask for", o.ClusterSigningDuration))
	}
	if o.EventTTL < time.Second {
		errs = append(errs, fmt.Errorf("--event-ttl %s: want at least a second", o.EventTTL))
	}
	return slices.Concat(errs, o.validateFiles(), o.Encryption.validate(), o.Authentication.Validate(), o.validateAudit())
}

// validateAudit refuses half a configuration, too: upstream takes it and writes nothing.
func (o *Options) validateAudit() []error {
	errs := o.Audit.Validate()
	log, webhook, policy := o.Audit.LogOptions.Path, o.Audit.WebhookOptions.ConfigFile, o.Audit.PolicyFile
	switch {
	case policy != "" && log == "" && webhook == "":
		errs = append(errs, fmt.Errorf("--audit-policy-file %q: nothing would be written: say where with --audit-log-path or --audit-webhook-config-file", policy))
	case policy == "" && log != "":
		errs = append(errs, fmt.Errorf("--audit-log-path %q: nothing would be written: say what with --audit-policy-file", log))
	case policy == "" && webhook != "":
		errs = append(errs, fmt.Errorf("--audit-webhook-config-file %q: nothing would be sent: say what with --audit-policy-file", webhook))
	}
	return errs
}

// FileOfFlag is a file that a flag names.
type FileOfFlag struct{ Flag, File string }

// Readable names the files of options with secrets in them that others on this machine can read, each with what to do; and so of
// others with secrets in them. That a group reads one may be meant, as where it is mounted into a container.
func (o *Options) Readable(others ...FileOfFlag) []string {
	var warnings []string
	for _, given := range append([]FileOfFlag{
		{"--token-auth-file", o.TokenAuthFile},
		{"--encryption-provider-config", o.Encryption.ConfigFile},
		{"--tls-private-key-file", o.TLSPrivateKeyFile},
		{"--authentication-token-webhook-config-file", o.Authentication.WebHook.ConfigFile},
		{"--audit-webhook-config-file", o.Audit.WebhookOptions.ConfigFile},
	}, others...) {
		info, err := os.Stat(given.File)
		if given.File != "" && err == nil && info.Mode().Perm()&0o007 != 0 { // what is not there is Validate's
			warnings = append(warnings, fmt.Sprintf("%s %s holds secrets, and everybody on this machine can use it (mode %#o): chmod 600 %s", given.Flag, given.File, info.Mode().Perm(), given.File))
		}
	}
	return warnings
}

// AdminKubeconfig is the file that the administrator's kubeconfig is written to.
func (o *Options) AdminKubeconfig() string {
	if o.KubeconfigPath != "" {
		return o.KubeconfigPath
	}
	return filepath.Join(o.RootDirectory, "admin.kubeconfig")
}

// webhookCaller calls webhooks where the options allow it.
func (o *Options) webhookCaller() (*webhooks.Caller, error) {
	allowed, err := webhooks.ParsePrefixes(o.WebhookAllowedAddresses)
	if err != nil {
		return nil, fmt.Errorf("--webhook-allowed-addresses: %w", err)
	}
	refused, err := webhooks.ParsePrefixes(o.WebhookRefusedAddresses)
	if err != nil {
		return nil, fmt.Errorf("--webhook-refused-addresses: %w", err)
	}
	return webhooks.NewCaller(webhooks.Addresses{Allowed: allowed, Refused: refused}), nil
}

func (o *Options) pkiDirectory() string { return filepath.Join(o.RootDirectory, "pki") }

// externalHost is the host part of the URLs that people see.
func (o *Options) externalHost() string {
	switch {
	case o.ExternalHostname != "":
		return o.ExternalHostname
	case o.BindAddress.IsUnspecified():
		return "127.0.0.1"
	}
	return o.BindAddress.String()
}
