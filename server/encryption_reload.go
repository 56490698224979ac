package server

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionconfigcontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/server/storage"
)

const (
	// rewriteAgain is how long after a failure rows are written anew once more, and rewriteAgainMost after many: servers that
	// disagree about the first key must not keep etcd busy.
	rewriteAgain, rewriteAgainMost = 10 * time.Second, 10 * time.Minute
	// kmsPatience is how long a key management may take to answer for the first time, and kmsAgain after what it is asked again. Upstream
	// asks it every 3 s at most.
	kmsPatience, kmsAgain = 10 * time.Second, 100 * time.Millisecond
)

// reload takes up a changed EncryptionConfiguration. Upstream's own tells nobody when it did.
type reload struct {
	file, server string
	transformers *encryptionconfig.DynamicTransformers
	// taken is the hash of what counts now.
	taken string
	// took is told of each hash that counts from then on.
	took func(hash string)
	// reads returns an error if what is stored cannot be decrypted.
	reads func(context.Context, value.ResourceTransformers) error
}

// run looks at the file until ctx ends.
func (r *reload) run(ctx context.Context) {
	ticker := time.NewTicker(encryptionconfigcontroller.EncryptionConfigFileChangePollDuration)
	defer ticker.Stop()
	for {
		if err := r.once(ctx); err != nil && ctx.Err() == nil {
			encryptionmetrics.RecordEncryptionConfigAutomaticReloadFailure(r.server)
			klog.FromContext(ctx).Error(err, "The changed --encryption-provider-config is not taken up; what counted before still does", "file", r.file)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// once takes up the file if it is another than before, and well.
func (r *reload) once(ctx context.Context) error {
	hash, err := encryptionconfig.GetEncryptionConfigHash(r.file)
	if err != nil {
		return err
	}
	if hash == r.taken {
		return nil
	}
	reading, cancel := context.WithCancel(ctx) // ends what is read from the file when a later reading takes its place
	loaded, err := encryptionconfig.LoadEncryptionConfig(reading, r.file, true, r.server)
	if err == nil {
		err = r.well(reading, loaded)
	}
	if err != nil {
		cancel()
		return err
	}
	r.transformers.Set(loaded.Transformers, cancel, loaded.HealthChecks[0], loaded.KMSCloseGracePeriod)
	r.taken = loaded.EncryptionFileContentHash
	encryptionmetrics.RecordEncryptionConfigAutomaticReloadSuccess(r.server, r.taken)
	klog.FromContext(ctx).Info("Took up the changed --encryption-provider-config", "file", r.file, "hash", short(r.taken))
	r.took(r.taken)
	return nil
}

// well returns an error unless all key management of the file answers, which may just have been started, and what is stored
// can be decrypted.
func (r *reload) well(ctx context.Context, loaded *encryptionconfig.EncryptionConfiguration) error {
	if len(loaded.HealthChecks) != 1 {
		return fmt.Errorf("%d checks of health for one file", len(loaded.HealthChecks))
	}
	ctx, cancel := context.WithTimeout(ctx, kmsPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+loaded.HealthChecks[0].Name(), nil)
	if err != nil {
		return err
	}
	if err := loaded.HealthChecks[0].Check(req); err != nil {
		return fmt.Errorf("the key management of the changed file is not well: %w", err)
	}
	return r.reads(ctx, encryptionconfig.StaticTransformers(loaded.Transformers))
}

// rewrites has rows written with the first key after the start, and after each change of the file.
type rewrites struct {
	hash atomic.Pointer[string] // of what counts
	due  chan struct{}          // of size 1
}

func newRewrites(hash string) *rewrites {
	r := &rewrites{due: make(chan struct{}, 1)}
	r.took(hash)
	return r
}

// took says that another file counts from now on.
func (r *rewrites) took(hash string) {
	r.hash.Store(&hash)
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// run writes stale rows anew whenever it is due, until ctx ends. The last line in the log about a hash says that keys which
// are not the first of that file can go.
func (r *rewrites) run(ctx context.Context, rewrite func(context.Context) (storage.Rewritten, error)) {
	logger := klog.FromContext(ctx)
	for {
		select {
		case <-r.due:
		case <-ctx.Done():
			return
		}
		hash := short(*r.hash.Load()) // before the pass: it is of this file, or of a newer one
		for wait := rewriteAgain; ; wait = min(2*wait, rewriteAgainMost) {
			did, err := rewrite(ctx)
			if ctx.Err() != nil {
				return
			}
			switch {
			case err != nil:
				logger.Error(err, "Not all rows are written with the first key of --encryption-provider-config; trying again", "hash", hash, "in", wait)
			case did.Unreadable+did.TooLong > 0:
				logger.Error(nil, "All rows that can be decrypted are written with the first key of --encryption-provider-config; some cannot: bring their key back, or delete them. "+
					"Those that are too long for etcd when they are encrypted stay as they are: delete them, or make them shorter",
					"hash", hash, "written", did.Written, "read", did.Read, "unreadable", did.Unreadable, "first", did.Named, "tooLong", did.TooLong, "firstTooLong", did.TooLongNamed)
			default:
				logger.Info("All rows are written with the first key of --encryption-provider-config", "hash", hash, "written", did.Written, "read", did.Read)
			}
			if err == nil {
				break
			}
			again := time.NewTimer(wait)
			select {
			case <-again.C:
			case <-r.due: // sooner, by another file
				again.Stop()
				hash, wait = short(*r.hash.Load()), rewriteAgain
			case <-ctx.Done():
				again.Stop()
				return
			}
		}
	}
}

// short is what a line of the log has of a hash.
func short(hash string) string {
	const enough = len("sha256:") + 12
	return hash[:min(enough, len(hash))]
}
