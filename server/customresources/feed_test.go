package customresources

import (
	"path/filepath"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// storedRows are those of definitions in an etcd of their own.
func storedRows(t *testing.T) *storage.Resource {
	t.Helper()
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	factory := serverstorage.NewDefaultStorageFactory(*storagebackend.NewDefaultConfig("/registry", nil), "", apiextensionsapiserver.Codecs,
		serverstorage.NewDefaultResourceEncodingConfig(apiextensionsapiserver.Scheme), serverstorage.NewResourceConfig(), nil)
	backend, err := storage.New(storage.Config{Client: etcd.Client, StorageFactory: factory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Destroy)
	getter := backend.Uncached(cutting{apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)})
	if _, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme, getter); err != nil {
		t.Fatal(err)
	}
	rows, ok := backend.Resource(apiextensions.Resource(definitions))
	if !ok {
		t.Fatal("no store of definitions is open")
	}
	return rows
}

// Whoever was told that a definition is gone finds it gone, although the watch here has not told yet: it tells nothing in
// this test.
func TestWhatIsGoneIsNotServed(t *testing.T) {
	established := func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Status.AcceptedNames = crd.Spec.Names
		crd.Status.Conditions = []condition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	}
	going := func(crd *apiextensionsv1.CustomResourceDefinition) {
		established(crd)
		crd.DeletionTimestamp = new(metav1.Now())
	}
	for _, tc := range []struct {
		reason string
		change func(*apiextensionsv1.CustomResourceDefinition)
		source source
		there  bool // there is a row
		served bool
	}{
		{"a definition that is not being deleted is served without a look at etcd", established, told, false, true},
		{"one that is being deleted is served while it is there", going, told, true, true},
		{"and not once it is gone", going, told, false, false},
		{"nor if all that is known is what this server was about to write", going, decided, false, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			rows := storedRows(t)
			d := newDefinitions(rows, Names{})
			def := defined(t, &d.specs, "shop", "", tc.change)
			ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"})
			stored, kept := &apiextensions.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(def.CustomResourceDefinition, stored, nil); err != nil {
				t.Fatal(err)
			}
			if err := rows.Storage.Create(ctx, rows.Key("", def.Name), stored, kept, 0); err != nil {
				t.Fatal(err)
			}
			def = defined(t, &d.specs, "shop", kept.ResourceVersion, tc.change)
			d.put(def, tc.source)
			if !tc.there {
				if err := rows.Storage.Delete(ctx, rows.Key("", def.Name), &apiextensions.CustomResourceDefinition{}, nil, kubestorage.ValidateAllObjectFunc, nil, kubestorage.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := d.current(ctx, "shop", def.Name, "v1")
			if err != nil || got != nil != tc.served {
				t.Errorf("answered by %v, %v; want an answer: %t", got, err, tc.served)
			}
		})
	}
}
