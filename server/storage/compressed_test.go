package storage

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
)

const definitionsKey = "/apiextensions.k8s.io/customresourcedefinitions/"

// serveDefinitions opens the registry of CustomResourceDefinitions.
func serveDefinitions(t *testing.T, b *Backend) *registry.Store {
	t.Helper()
	definitions, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme,
		b.Uncached(apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(definitions.Destroy)
	return definitions.Store
}

// definition of a resource of shop.example whose objects have some fields.
func definition(plural string, fields int) *apiextensions.CustomResourceDefinition {
	properties := map[string]apiextensions.JSONSchemaProps{}
	for i := range fields {
		properties[fmt.Sprint("field", i)] = apiextensions.JSONSchemaProps{Type: "string", Description: "What a person writes about it."}
	}
	schema := &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object", Properties: properties}}
	d := &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{
		Group: "shop.example", Scope: apiextensions.NamespaceScoped, PreserveUnknownFields: new(bool),
		Names:      apiextensions.CustomResourceDefinitionNames{Plural: plural, Singular: plural, Kind: plural, ListKind: plural + "List"},
		Conversion: &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter},
		Versions:   []apiextensions.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}}, Validation: schema,
	}}
	d.Name = plural + ".shop.example"
	return d
}

// definitionRow is the row of a definition in logical cluster aa.
func definitionRow(t *testing.T, prefix, plural string) []byte {
	t.Helper()
	got, err := etcd.Client.Get(t.Context(), prefix+definitionsKey+"aa/"+plural+".shop.example")
	if err != nil || len(got.Kvs) != 1 {
		t.Fatal(got, err)
	}
	return got.Kvs[0].Value
}

// TestCompressed: long definitions are compressed from when they may be, and read whenever they were written. They count for as much as
// without, in a logical cluster whose limit is on bytes, and are exported in plain.
func TestCompressed(t *testing.T) {
	prefix := prefixOf(t)
	s := serve(t, prefix, func(c *Config) { c.Limits = always(Limits{Bytes: 1 << 20}) })
	definitions := serveDefinitions(t, s.Backend)
	aa := as(in("aa"))
	mustPass(t, "before", tryCreate(definitions, aa, definition("olders", 100)))
	s.Compress()
	mustPass(t, "since", tryCreate(definitions, aa, definition("newers", 100)))
	mustPass(t, "a short one", tryCreate(definitions, aa, definition("shorts", 1)))
	before, after, short := definitionRow(t, prefix, "olders"), definitionRow(t, prefix, "newers"), definitionRow(t, prefix, "shorts")
	if isCompressed(before) || isCompressed(short) || !isCompressed(after) || len(after) > len(before)/4 {
		t.Errorf("rows begin with %q, %q and %q, of %d, %d and %d bytes; want the last compressed, to less than a quarter of the first", before[:4], short[:4], after[:4], len(before), len(short), len(after))
	}
	if got, want := plainSize(after), len(before); got != want {
		t.Errorf("a row of %d bytes counts for %d, want %d as the other", len(after), got, want)
	}
	has, _, err := s.countShare(t.Context(), share{cluster: "aa"})
	if err != nil {
		t.Fatal(err)
	}
	if known := s.use(t, share{cluster: "aa"}); known != has || has.bytes < int64(2*len(before)) {
		t.Errorf("%+v is known and %+v counted, want the same, and the long ones in plain", known, has)
	}

	again := serve(t, prefix, nil) // which writes none
	read := serveDefinitions(t, again.Backend)
	list, err := read.List(in("aa"), &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var fields []int
	for _, d := range list.(*apiextensions.CustomResourceDefinitionList).Items {
		fields = append(fields, len(d.Spec.Validation.OpenAPIV3Schema.Properties))
	}
	if diff := cmp.Diff([]int{100, 100, 1}, fields); diff != "" {
		t.Errorf("fields of what is read (-want +got):\n%s", diff)
	}
	export, err := s.Export(t.Context(), "aa", nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	err = export.Rows(t.Context(), func(row PlainRow) error {
		if rows++; !bytes.HasPrefix(row.Value, []byte(`{"kind":"CustomResourceDefinition"`)) {
			t.Errorf("exported is %.40q", row.Value)
		}
		return nil
	})
	if err != nil || rows != 3 {
		t.Errorf("%d rows exported, error %v, want 3", rows, err)
	}

	_, _, err = definitions.Update(aa, "newers.shop.example", changed(func(d *apiextensions.CustomResourceDefinition) { d.Labels = map[string]string{"a": "b"} }),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	mustPass(t, "a change", err)
	if has, _, err = s.countShare(t.Context(), share{cluster: "aa"}); err != nil {
		t.Fatal(err)
	}
	if known := s.use(t, share{cluster: "aa"}); known != has {
		t.Errorf("%+v is known after a change, want %+v", known, has)
	}
}

// TestCompressedIsNotEncrypted: what is encrypted is not compressed before. What was compressed when encryption was switched on is read, and
// is encrypted in plain length once rows are written anew, as is what an earlier version encrypted as it was.
func TestCompressedIsNotEncrypted(t *testing.T) {
	prefix := prefixOf(t)
	plain := serve(t, prefix, nil)
	plain.Compress()
	inPlain := serveDefinitions(t, plain.Backend)
	for _, plural := range []string{"befores", "earliers"} {
		mustPass(t, "in plain", tryCreate(inPlain, in("aa"), definition(plural, 100)))
		if !isCompressed(definitionRow(t, prefix, plural)) {
			t.Fatalf("%s is not compressed, so nothing is tested", plural)
		}
	}

	key := keysOf(t, "k")
	transformers := &reloaded{}
	transformers.transformer.Store(&key)
	s := serve(t, prefix, func(c *Config) { c.Transformers = transformers })
	s.Compress()
	definitions := serveDefinitions(t, s.Backend)
	mustPass(t, "encrypted", tryCreate(definitions, in("aa"), definition("afters", 100)))
	rowKey := func(plural string) string { return prefix + definitionsKey + "aa/" + plural + ".shop.example" }
	asItWas, err := key.TransformToStorage(t.Context(), definitionRow(t, prefix, "earliers"), value.DefaultContext(rowKey("earliers")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Client.Put(t.Context(), rowKey("earliers"), string(asItWas)); err != nil {
		t.Fatal(err)
	}

	plurals := []string{"befores", "earliers", "afters"}
	for _, when := range []string{"before rows are written anew", "after it"} {
		for _, plural := range plurals {
			if got, err := definitions.Get(in("aa"), plural+".shop.example", &metav1.GetOptions{}); err != nil {
				t.Errorf("%s: %v, %v", when, got, err)
			}
		}
		if _, err := s.RewriteStale(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, plural := range plurals {
		row := definitionRow(t, prefix, plural)
		opened, stale, err := key.TransformFromStorage(t.Context(), row, value.DefaultContext(rowKey(plural)))
		if err != nil || stale || !isEncrypted(row) || !bytes.HasPrefix(opened, []byte("{")) {
			t.Errorf("%s: encrypted %v, stale %v, was %.20q, error %v; want JSON that is encrypted", plural, isEncrypted(row), stale, opened, err)
		}
	}
	if got, err := s.RewriteStale(t.Context()); err != nil || got.Written != 0 {
		t.Errorf("once more: %+v, %v; want nothing written", got, err)
	}
}

// TestRewriteLeavesWhatIsTooLong: a compressed row that etcd would not take in plain length stays as it is, is named, and holds up no other.
func TestRewriteLeavesWhatIsTooLong(t *testing.T) {
	prefix := prefixOf(t)
	long, secret := prefix+definitionsKey+"aa/longs.shop.example", prefix+"/secrets/shop/default/s"
	row := compressor().EncodeAll(append([]byte(`{"kind":"CustomResourceDefinition","of":"`), bytes.Repeat([]byte("x"), compressTo-60)...), nil)
	for key, value := range map[string]string{long: string(row), secret: `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"default","name":"s"}}`} {
		if _, err := etcd.Client.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	key := keysOf(t, "k")
	transformers := &reloaded{}
	transformers.transformer.Store(&key)
	s := serve(t, prefix, func(c *Config) { c.Transformers = transformers })
	serveDefinitions(t, s.Backend)
	kinds, err := s.kindsOfRows(t.Context(), s.transformerOf)
	if err != nil || len(kinds) < 2 || kinds[len(kinds)-1].base+"/" != prefix+definitionsKey {
		t.Errorf("the rows below %v are written, error %v; want definitions last, which wait where there is no room for them", kinds, err)
	}
	got, err := s.RewriteStale(t.Context())
	if err != nil || got.TooLong != 1 || len(got.TooLongNamed) != 1 || got.TooLongNamed[0] != long {
		t.Errorf("%+v, error %v; want %s left alone", got, err, long)
	}
	if now := definitionRow(t, prefix, "longs"); !bytes.Equal(now, row) {
		t.Errorf("it is %.20q, of %d bytes now", now, len(now))
	}
	if now, err := etcd.Client.Get(t.Context(), secret); err != nil || !isEncrypted(now.Kvs[0].Value) {
		t.Errorf("a Secret is not encrypted: error %v", err)
	}
}

// TestReadableWithASpoiltDefinition: a compressed row that is damaged keeps no server from starting, whether or not it encrypts.
func TestReadableWithASpoiltDefinition(t *testing.T) {
	prefix := prefixOf(t)
	row := compressor().EncodeAll(bytes.Repeat([]byte("abc"), 10_000), nil)
	if _, err := etcd.Client.Put(t.Context(), prefix+definitionsKey+"aa/spoilts.shop.example", string(row[:20])); err != nil {
		t.Fatal(err)
	}
	s := serve(t, prefix, nil)
	serveDefinitions(t, s.Backend)
	if err := s.Readable(t.Context(), nil); err != nil {
		t.Errorf("without encryption: %v", err)
	}
	if err := s.Readable(t.Context(), oneKey{keysOf(t, "k")}); err != nil {
		t.Errorf("with a key, and identity after it: %v", err)
	}
}

// TestDecompressIsBounded: a row that says it is longer than any that is written is an error, and takes no memory.
func TestDecompressIsBounded(t *testing.T) {
	coder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer coder.Close()
	c := &compressing{inner: plain{}}
	for name, row := range map[string][]byte{
		"too long":  coder.EncodeAll(make([]byte, 64<<20), nil),
		"cut":       coder.EncodeAll(bytes.Repeat([]byte("abc"), 10_000), nil)[:20],
		"no header": compressedPrefix,
	} {
		if _, _, err := c.TransformFromStorage(t.Context(), row, value.DefaultContext("/registry/x")); err == nil || !strings.Contains(err.Error(), "decompress /registry/x") {
			t.Errorf("%s: error %v, want one that names the row", name, err)
		}
	}
	if long := coder.EncodeAll(make([]byte, 64<<20), nil); plainSize(long) != len(long) {
		t.Errorf("a row of %d bytes counts for %d", len(long), plainSize(long))
	}
}

// TestRowOfFormat2: as TestRowsOfFormat1, of a row that the first version wrote which compresses.
func TestRowOfFormat2(t *testing.T) {
	row, err := hex.DecodeString(format2)
	if err != nil {
		t.Fatal(err)
	}
	got, stale, err := (&compressing{inner: plain{}}).TransformFromStorage(t.Context(), row, value.DefaultContext("/registry/x"))
	if want := `{"kind":"CustomResourceDefinition","of":"` + strings.Repeat("shop.example ", 300) + `"}`; err != nil || stale || string(got) != want {
		t.Errorf("read %.60q, stale %v, error %v", got, stale, err)
	}
}

const format2 = "28b52ffd64670e15020084037b226b696e64223a22437573746f6d5265736f75726365446566696e6974696f6e222c226f66223a2273686f702e6578616d706c6520227d015418042fc672087803a972"
