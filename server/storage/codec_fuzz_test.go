package storage

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// FuzzSplitHeader: a value is of the one logical cluster that its header names, which ends where its line does, and the rest of it
// is what was stored, byte for byte; no value is taken below the key of another.
func FuzzSplitHeader(f *testing.F) {
	for _, data := range []string{
		"lc:shopname\nk8s\x00...", "lc:shopname\n", "lc:shopname", "lc:\nvalue", "lc:", "", "lc:shopname\nlc:bankname\nvalue", "LC:shopname\nvalue", " lc:shopname\nvalue", "lc:shop\rname\nvalue",
		"lc:shopname\x00\nvalue", "{\"kind\":\"ConfigMap\"}", "k8s\x00", "lc:system:admin\nvalue", "lc:shopname/\nvalue", "lc:*\nvalue",
	} {
		f.Add([]byte(data), "shopname", "default/a")
	}
	base := "/registry/configmaps"
	transformer := &clusterTransformer{base: base, inner: identity.NewEncryptCheckTransformer()}
	f.Fuzz(func(t *testing.T, data []byte, cluster, rest string) {
		named, plain, err := splitHeader(data)
		if err == nil {
			if again := append(appendHeader(nil, string(named)), plain...); !bytes.Equal(again, data) {
				t.Errorf("%q is %q of %q, which is %q", data, plain, named, again)
			}
			if len(named) == 0 || bytes.Contains(named, []byte{'\n'}) {
				t.Errorf("%q is of %q", data, named)
			}
		} else if bytes.HasPrefix(data, []byte("lc:")) && bytes.IndexByte(data, '\n') > len("lc:") {
			t.Errorf("%q has a header, and %v", data, err)
		}

		// The same by a key, as etcd has it, and back.
		key := base + "/" + cluster + "/" + rest
		isOne := cluster != "" && !strings.Contains(cluster, "/") && rest != ""
		if got, err := clusterOf(base, key); (err == nil) != isOne && !strings.Contains(cluster, "/") || err == nil && !strings.HasPrefix(key, base+"/"+got+"/") || isOne && got != cluster {
			t.Errorf("%q is of %q, %v", key, got, err)
		}
		at := value.DefaultContext(key)
		stored, err := transformer.TransformToStorage(context.Background(), data, at)
		if mine := named != nil && isOne && string(named) == cluster; isOne && mine != (err == nil) || err == nil && !bytes.Equal(stored, plain) {
			t.Errorf("%q is stored at %q as %q, %v", data, key, stored, err)
		}
		if err != nil || bytes.HasPrefix(stored, []byte("k8s:enc:")) { // which the transformer of what is not encrypted does not read
			return
		}
		if back, _, err := transformer.TransformFromStorage(context.Background(), stored, at); err != nil || !bytes.Equal(back, data) {
			t.Errorf("%q comes back from %q as %q, %v", data, key, back, err)
		}
	})
}
