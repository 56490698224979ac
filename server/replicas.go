package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"atoll.dev/atoll/server/storage"
)

// plainRows are rows of the installation that are not encrypted, as storage.Backend has them.
type plainRows interface {
	ReadPlainInstallation(ctx context.Context, name string) (storage.InstallationRow, error)
	WritePlainInstallation(ctx context.Context, name string, value []byte, revision int64) (bool, error)
}

// authorities are the fingerprints of a server's own certificate authorities: who is let in by one server must be by all,
// and what one writes into kubeconfigs, ConfigMaps and certificates must hold with all.
type authorities struct {
	Clients string `json:"clients"`
	Syncers string `json:"syncers"`
	// Workspaces is empty in rows of before it was compared: the first server to start since says which it is.
	Workspaces string `json:"workspaces,omitempty"`
}

// difference is "" if all are the same, and otherwise says which are not.
func (own authorities) difference(there authorities) string {
	for _, pair := range []struct{ directory, own, there string }{
		{"", own.Clients, there.Clients}, {"syncers/", own.Syncers, there.Syncers}, {"workspaces/", own.Workspaces, there.Workspaces},
	} {
		if pair.own != pair.there {
			return fmt.Sprintf("%sca.crt there is sha256:%.12s, here it is sha256:%.12s", pair.directory, pair.there, pair.own)
		}
	}
	return ""
}

// fingerprint is the SHA-256 of an authority's certificate, in hex.
func fingerprint(p *pki) string {
	sum := sha256.Sum256(p.ca.Raw)
	return hex.EncodeToString(sum[:])
}

// agreeOnAuthorities refuses a server whose authorities are not those of the servers before it on the same etcd; the first
// one, which is told so, says which they are. What was made because a volume was not mounted, or a backup lacked it, would else
// make all that there is worthless without a word. replace has them be other ones from now on. directory is where own lie. The
// row is in plain: a server that starts reads it whichever keys there are by then, and nobody writes it anew when they change
// while servers run.
func agreeOnAuthorities(ctx context.Context, rows plainRows, own authorities, directory string, replace bool) (first bool, _ error) {
	want, err := json.Marshal(own)
	if err != nil {
		return false, err
	}
	for {
		row, err := rows.ReadPlainInstallation(ctx, storage.AuthoritiesRow)
		if err != nil {
			return false, err
		}
		if row.Value == nil {
			written, err := rows.WritePlainInstallation(ctx, storage.AuthoritiesRow, want, row.Revision)
			if err != nil {
				return false, err
			}
			if written {
				return true, nil
			}
			continue // another server was first; the deadline of ctx bounds how often
		}
		difference, before := own.differs(row.Value)
		if difference != "" && !replace {
			return false, refusal(directory, difference)
		}
		if difference == "" && !before && !row.Stale {
			return false, nil
		}
		written, err := rows.WritePlainInstallation(ctx, storage.AuthoritiesRow, want, row.Revision)
		if err != nil || written {
			return false, err
		}
	}
}

// differs says how those in a row are others, "" if they are not, and whether the row is of before that of workspaces was in it.
func (own authorities) differs(row []byte) (difference string, before bool) {
	var there authorities
	if err := json.Unmarshal(row, &there); err != nil {
		return fmt.Sprintf("the row says %.80q: %v", row, err), false
	}
	if before = there.Workspaces == ""; before {
		there.Workspaces = own.Workspaces
	}
	return own.difference(there), before
}

// refusal is the error of a server that has other authorities, of which directory is the place.
func refusal(directory, difference string) error {
	return fmt.Errorf("what is stored is of other certificate authorities than are in %[1]s, and some may just have been made there since it was empty: copy ca.crt and ca.key, "+
		"syncers/ca.crt and syncers/ca.key, workspaces/ca.crt and workspaces/ca.key there from a backup, or from the pki directory of another server that uses this etcd, "+
		"as docs/operations/replicas.md says; or, if there are none any more, start once with --replace-certificate-authorities, and give everybody "+
		"new kubeconfigs and certificates (%[3]s; /atoll/installation/%[2]s in etcd)", directory, storage.AuthoritiesRow, difference)
}
