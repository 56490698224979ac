package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// installationKey is where rows of the installation itself are: beside the rows of logical clusters and not among them,
// so that no request reaches one and no deletion of a logical cluster touches one.
const installationKey = "/atoll/installation/"

// Rows in plain.
const (
	// AuthoritiesRow says which certificate authorities the servers have.
	AuthoritiesRow = "certificate-authorities"
	// LevelRow says which servers may lead.
	LevelRow = "level"
)

// isPlain says that a key is that of a row that nobody encrypts.
func isPlain(key string) bool {
	return key == installationKey+AuthoritiesRow || key == installationKey+LevelRow
}

// encryptedPrefix begins every value that upstream's providers encrypt, and nothing that is in plain.
const encryptedPrefix = "k8s:enc:"

// installationResource is what the installation's rows are encrypted as.
var installationResource = schema.GroupResource{Resource: "secrets"}

func isEncrypted(row []byte) bool { return bytes.HasPrefix(row, []byte(encryptedPrefix)) }

// ErrEncrypted is the error of rows that are encrypted, read without a configuration of encryption.
var ErrEncrypted = errors.New("the store is encrypted: start the server with the --encryption-provider-config that was used, which a backup does not hold")

// InstallationRow is a row of the installation as it was read.
type InstallationRow struct {
	// Value is nil if there is no such row.
	Value []byte
	// Revision is what WriteInstallation compares with; 0 if there is no such row.
	Revision int64
	// Stale says that the row is not encrypted as it would be written now, or is and would not be.
	Stale bool
}

// ReadInstallation reads a row of the installation. It is encrypted as Secrets are.
func (b *Backend) ReadInstallation(ctx context.Context, name string) (InstallationRow, error) {
	key := installationKey + name
	got, err := b.client.Get(ctx, key)
	if err != nil {
		return InstallationRow{}, fmt.Errorf("read the installation's %s: %w", name, err)
	}
	if len(got.Kvs) == 0 {
		return InstallationRow{}, nil
	}
	if b.transform == nil && isEncrypted(got.Kvs[0].Value) {
		return InstallationRow{}, fmt.Errorf("read the installation's %s: %w", name, ErrEncrypted)
	}
	row := InstallationRow{Value: got.Kvs[0].Value, Revision: got.Kvs[0].ModRevision}
	if cipher := b.installationCipher(); cipher != nil {
		if row.Value, row.Stale, err = cipher.TransformFromStorage(ctx, row.Value, value.DefaultContext(key)); err != nil {
			return InstallationRow{}, fmt.Errorf("decrypt the installation's %s: %w: %w", name, err, ErrUnreadable)
		}
	}
	return row, nil
}

// ReadPlainInstallation reads a row of the installation that is in plain, since nothing in it is secret: it is read whatever
// became of the keys. One that WriteInstallation encrypted is read too, and Stale.
func (b *Backend) ReadPlainInstallation(ctx context.Context, name string) (InstallationRow, error) {
	got, err := b.client.Get(ctx, installationKey+name)
	if err != nil {
		return InstallationRow{}, fmt.Errorf("read the installation's %s: %w", name, err)
	}
	if len(got.Kvs) == 0 {
		return InstallationRow{}, nil
	}
	if !isEncrypted(got.Kvs[0].Value) {
		return InstallationRow{Value: got.Kvs[0].Value, Revision: got.Kvs[0].ModRevision}, nil
	}
	row, err := b.ReadInstallation(ctx, name)
	row.Stale = row.Value != nil
	return row, err
}

// WritePlainInstallation is WriteInstallation for ReadPlainInstallation.
func (b *Backend) WritePlainInstallation(ctx context.Context, name string, plain []byte, revision int64) (written bool, err error) {
	return b.putInstallation(ctx, name, plain, revision)
}

// WriteInstallation writes a row of the installation if it was last written at that revision, 0 for never, and says
// whether it did.
func (b *Backend) WriteInstallation(ctx context.Context, name string, plain []byte, revision int64) (written bool, err error) {
	key := installationKey + name
	if cipher := b.installationCipher(); cipher != nil {
		if plain, err = cipher.TransformToStorage(ctx, plain, value.DefaultContext(key)); err != nil {
			return false, fmt.Errorf("encrypt the installation's %s: %w", name, err)
		}
	}
	return b.putInstallation(ctx, name, plain, revision)
}

func (b *Backend) putInstallation(ctx context.Context, name string, data []byte, revision int64) (written bool, err error) {
	key := installationKey + name
	got, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(data))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("write the installation's %s: %w", name, err)
	}
	return got.Succeeded, nil
}

// installationCipher is nil where nothing is encrypted.
func (b *Backend) installationCipher() value.Transformer {
	if b.transform == nil {
		return nil
	}
	return b.transform.TransformerForResource(installationResource)
}
