package storage

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

const (
	// readableRows is how many rows of a kind are tried: enough that a spoilt one among them does not pass for a lost key.
	readableRows = 20
	// readableParallel is how many kinds are looked at at once.
	readableParallel = 8
)

// ErrUnreadable is the error of a kind of rows of which no encrypted one can be decrypted.
var ErrUnreadable = errors.New("no provider of --encryption-provider-config reads what etcd holds: it needs the key that this was written with, or identity if it was written in plain")

// Readable returns ErrUnreadable, with the key of a row and the cause, if some kind of rows cannot be decrypted by transformers, or
// ErrEncrypted if these are nil, of a server that encrypts nothing. It is for when all built-in resources are open.
//
// It tries the first rows of each kind, custom resources and the installation's own rows among them, and says nothing of
// a kind of which some encrypted rows can be decrypted: one row that is spoilt concerns its logical cluster only.
// RewriteStale tells of those.
func (b *Backend) Readable(ctx context.Context, transformers value.ResourceTransformers) error {
	cause := ErrUnreadable
	if transformers == nil {
		transformers, cause = plainOnly{}, ErrEncrypted
	}
	kinds, err := b.kindsOfRows(ctx, transformers.TransformerForResource)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readableParallel)
	for _, k := range kinds {
		group.Go(func() error { return b.readable(ctx, k, cause) })
	}
	return group.Wait()
}

func (b *Backend) readable(ctx context.Context, k kindOfRows, cause error) error {
	got, err := b.client.Get(ctx, k.base+"/", clientv3.WithPrefix(), clientv3.WithLimit(readableRows))
	if err != nil {
		return fmt.Errorf("read the first rows below %s: %w", k.base, err)
	}
	var failed error
	for _, kv := range got.Kvs {
		key := string(kv.Key)
		if isPlain(key) {
			continue
		}
		_, _, err := k.transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(key))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && failed == nil:
			failed = fmt.Errorf("decrypt %s: %w: %w", key, err, cause)
		case err == nil && isEncrypted(kv.Value):
			return nil
		}
	}
	return failed
}

// plainOnly decrypts nothing.
type plainOnly struct{}

func (plainOnly) TransformerForResource(schema.GroupResource) value.Transformer {
	return identity.NewEncryptCheckTransformer()
}
