package customresources

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// text is a stored definition whose one schema has these fields.
func text(fields string) []byte {
	return []byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"widgets.shop.example"},
"spec":{"group":"shop.example","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"scope":"Namespaced","versions":[
{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"` + fields + `}}}],"conversion":{"strategy":"None"}},
"status":{"conditions":null,"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"storedVersions":["v1"]}}`)
}

func repeated(n int, of func(int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = of(i)
	}
	return strings.Join(parts, ",")
}

func always(s string) func(int) string { return func(int) string { return s } }

func decoded(t testing.TB, text []byte) *apiextensions.CustomResourceDefinition {
	t.Helper()
	stored := &apiextensions.CustomResourceDefinition{}
	codec := apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	if _, _, err := codec.Decode(text, nil, stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what has a cleanup goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// shapes are of definitions, each of megabytes, decoded: how short their text is, is up to who writes it.
var shapes = []struct{ name, fields string }{
	{"schemas of nothing", `,"properties":{"a":{"type":"object","allOf":[` + repeated(20_000, always(`{}`)) + `]}}`},
	{"short properties", `,"properties":{` + repeated(20_000, func(i int) string { return fmt.Sprintf(`"p%d":{"type":"string"}`, i) }) + `}`},
	{"long words", `,"description":"` + strings.Repeat("what this is for; ", 400_000) + `"`},
	{"items of items", strings.Repeat(`,"items":{"type":"array"`, 2000) + strings.Repeat("}", 2000)},
	{"values to choose from", `,"enum":[` + repeated(200_000, func(i int) string { return fmt.Sprint(i) }) + `]`},
	{"required words", `,"required":[` + repeated(200_000, always(`"ab"`)) + `]`},
	// Written and served it is unpacked, and known as text.
	{"a default of objects", `,"properties":{"a":{"type":"object","default":{"b":[` + repeated(50_000, always(`{"c":1}`)) + `]}}}`},
	{"rules", `,"x-kubernetes-validations":[` + repeated(40_000, always(`{"rule":"1<2","messageExpression":"'a'"}`)) + `]`},
}

// TestWeight: what a definition weighs is about what it takes while it is known.
func TestWeight(t *testing.T) {
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			text := text(shape.fields)
			var specs specs
			before := heap()
			def, err := specs.define(decoded(t, text))
			if err != nil {
				t.Fatal(err)
			}
			takes := heap() - before
			weighs := def.weight.Bytes
			t.Logf("%d bytes of text take %d and weigh %d", len(text), takes, weighs)
			if weighs < takes*3/4 || weighs > 5*takes/2 && shape.name != "a default of objects" {
				t.Errorf("weighs %d bytes, and takes %d", weighs, takes)
			}
			if got := Weigh(decoded(t, text)).Bytes; got < weighs*9/10 || got > weighs*11/10 {
				t.Errorf("admission weighs %d bytes, and it weighs %d", got, weighs)
			}
			runtime.KeepAlive(def)
		})
	}
}

// TestWeightOfVersions: each version counts, whether or not others have the same schema, which upstream keeps once.
func TestWeightOfVersions(t *testing.T) {
	version := func(name, storage, fields string) string {
		return `{"name":"` + name + `","served":true,"storage":` + storage + `,"schema":{"openAPIV3Schema":{"type":"object"` + fields + `}}}`
	}
	of := func(versions ...string) Weight {
		one := string(text(""))
		from, to := strings.Index(one, `{"name":"v1"`), strings.Index(one, `],"conversion"`)
		return Weigh(decoded(t, []byte(one[:from]+strings.Join(versions, ",")+one[to:])))
	}
	rules := `,"x-kubernetes-validations":[{"rule":"1<2"},{"rule":"1<3","messageExpression":"'a'"}],"description":"` + strings.Repeat("long", 20_000) + `"`
	one := of(version("v1", "true", rules))
	if one.Rules != 3 || one.Bytes < 80_000 || one.Bytes > 90_000 {
		t.Errorf("one version weighs %+v, want 3 expressions and some 80,000 bytes", one)
	}
	for reason, two := range map[string]Weight{
		"the same":  of(version("v1", "true", rules), version("v2", "false", rules)),
		"different": of(version("v1", "true", rules), version("v2", "false", strings.Replace(rules, "1<2", "1<4", 1))),
	} {
		if two.Rules != 6 || two.Bytes < 2*80_000 || two.Bytes > 2*90_000 {
			t.Errorf("%s: two versions weigh %+v, want 6 expressions and some 160,000 bytes", reason, two)
		}
	}
}

// TestWeightOfExpressions: a long one counts for what it becomes, and so does each schema that has some; and all versions do.
func TestWeightOfExpressions(t *testing.T) {
	rules := func(n, length int) string {
		return `,"x-kubernetes-validations":[` + repeated(n, always(`{"rule":"`+strings.Repeat("a", length)+`"}`)) + `]`
	}
	nodes := func(n int) string {
		return `,"properties":{` + repeated(n, func(i int) string { return fmt.Sprintf(`"p%d":{"type":"object"%s}`, i, rules(1, 1)) }) + `}`
	}
	for _, test := range []struct {
		reason, fields string
		want           int64
	}{
		{"none", "", 0},
		{"ten short ones", rules(10, 1), 10*ExpressionBytes + envBytes},
		{"ten long ones", rules(10, 90_000), 10*ExpressionBytes + 10*90_000*timesExpression + envBytes},
		{"one on each of ten properties", nodes(10), 10*ExpressionBytes + 10*envBytes},
		{"a message", `,"x-kubernetes-validations":[{"rule":"a","messageExpression":"` + strings.Repeat("a", 90_000) + `"}]`, 2*ExpressionBytes + 90_000*timesExpression + envBytes},
	} {
		got := Weigh(decoded(t, text(test.fields)))
		if got.Compiled < test.want || got.Compiled > test.want+10*timesExpression || got.Sum() != got.Bytes+got.Compiled {
			t.Errorf("%s: %+v, want some %d bytes compiled", test.reason, got, test.want)
		}
		def, err := new(specs).define(decoded(t, text(test.fields)))
		if err != nil {
			t.Fatal(err)
		}
		if def.weight.Compiled != got.Compiled || instanceSize(def) != instanceBytes+versionBytes+timesWeight*def.shared.weight.Bytes+got.Compiled {
			t.Errorf("%s: it is known to take %+v, and %d where it is served: want %d compiled", test.reason, def.weight, instanceSize(def), got.Compiled)
		}
	}
}

// TestOver: what is too much is said with both numbers.
func TestOver(t *testing.T) {
	for _, test := range []struct {
		weight Weight
		says   string
	}{
		{Weight{Bytes: MostBytes, Rules: MostRules, PatternBytes: MostPatternBytes}, ""},
		{Weight{Bytes: MostBytes + 1}, "17 MiB, decoded: one may take 16 MiB"},
		{Weight{Pattern: "x{9}" + strings.Repeat("y", 200), PatternBytes: MostPatternBytes + 1}, `regular expression "x{9}` + strings.Repeat("y", 96) + ` ...", which takes 2 MiB of memory, compiled: one may take 1 MiB`},
		{Weight{Rules: MostRules + 1}, "1001 expressions in x-kubernetes-validations: one may have 1000"},
	} {
		if err := test.weight.Over(); (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %q", test.weight, err, test.says)
		}
	}
}

func TestContents(t *testing.T) {
	for _, test := range []struct {
		reason, fields string
		schemas, rules int
	}{
		{"the whole", ``, 1, 0},
		{"alternatives", `,"allOf":[{},{"not":{}}],"oneOf":[{}],"anyOf":[{}]`, 6, 0},
		{"properties, whatever they are called", `,"properties":{"default":{},"enum":{"properties":{"a\"b":{}}},"x-kubernetes-validations":{}}`, 5, 0},
		{"items", `,"items":{"items":[{},{}],"additionalItems":{}}`, 5, 0},
		{"what else is there", `,"additionalProperties":{},"patternProperties":{"a":{}},"definitions":{"a":{}},"dependencies":{"a":{},"b":["c"]}`, 5, 0},
		{"booleans are none", `,"additionalProperties":true,"items":{"additionalProperties":false}`, 2, 0},
		{"values are none", `,"default":{"properties":{"a":{}},"openAPIV3Schema":{"allOf":[{}]}},"enum":[{"a":{}}],"example":{"items":{}}`, 1, 0},
		{"rules", `,"x-kubernetes-validations":[{"rule":"{\"a\": [1]}"},{"rule":"b","messageExpression":"c"}],"items":{"x-kubernetes-validations":[{"rule":"d"}]}`, 2, 4},
	} {
		if schemas, rules := contents(text(test.fields)); schemas != test.schemas || rules != test.rules {
			t.Errorf("%s: %d schemas and %d expressions, want %d and %d", test.reason, schemas, rules, test.schemas, test.rules)
		}
	}
}

// FuzzContents: no text that admission would let pass is read as too large, whatever it is.
func FuzzContents(f *testing.F) {
	f.Add(text(``))
	f.Add(text(`,"allOf":[{},null,{"not":{}}],"properties":{"a\"b":{},"c":null},"x-kubernetes-validations":[{"rule":"1<2","messageExpression":"a"}]`))
	f.Add(text(`,"default":{"openAPIV3Schema":{"allOf":[{}]}},"items":[{"dependencies":{"a":["b"],"c":{}}}]`))
	f.Add([]byte(`{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"items":{}}}},{"schema":{"openAPIV3Schema":{"items":{}}}}]}}`))
	codec := apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	gvk := new(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		contents(sent) // whatever it is
		stored := &apiextensions.CustomResourceDefinition{}
		if _, _, err := codec.Decode(sent, gvk, stored); err != nil {
			return
		}
		text, err := encoded(stored)
		if err != nil {
			return
		}
		weight := Weigh(stored)
		if schemas, rules := contents(text); int64(schemas*schemaBytes) > weight.Bytes || rules > weight.Rules {
			t.Errorf("%d schemas and %d expressions are counted in what weighs %+v:\n%s", schemas, rules, weight, text)
		}
	})
}

func encoded(stored *apiextensions.CustomResourceDefinition) ([]byte, error) {
	var text strings.Builder
	err := apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion).Encode(stored, &text)
	return []byte(text.String()), err
}

// TestTooLargeIsCut: what is too large is read without its schemas, says so, and is written only to go.
func TestTooLargeIsCut(t *testing.T) {
	codec := cutting{apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)}
	for _, test := range []struct{ reason, fields, says string }{
		{"what is not too large is read as it is", `,"properties":{"a":{"allOf":[` + repeated(20_000, always(`{}`)) + `]}}`, ""},
		{"schemas", `,"properties":{"a":{"allOf":[` + repeated(100_000, always(`{}`)) + `]}}`, "it has 100002 schemas"},
		{"expressions", `,"x-kubernetes-validations":[` + repeated(1001, always(`{"rule":"1<2"}`)) + `]`, "it has 1001 expressions"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			read := &apiextensions.CustomResourceDefinition{}
			before := heap()
			got, gvk, err := codec.Decode(text(test.fields), nil, read)
			takes := heap() - before
			if err != nil || got != read || *gvk != (schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}) {
				t.Fatalf("read %T of %v: %v", got, gvk, err)
			}
			var specs specs
			def, err := specs.define(read)
			if err != nil {
				t.Fatal(err)
			}
			if cut := test.says != ""; def.isCut() != cut || (WhyCut(read) != nil) != cut || cut && takes > 100<<10 {
				t.Errorf("cut %v (%v), and takes %d bytes", def.isCut(), WhyCut(read), takes)
			}
			_, err = runtimeEncode(codec, read)
			if test.says == "" {
				if err != nil || len(read.Status.Conditions) > 0 {
					t.Errorf("says %+v, and is not written: %v", read.Status.Conditions, err)
				}
				return
			}
			if err == nil {
				t.Error("it is written without its schemas")
			}
			if c := read.Status.Conditions; len(c) != 1 || c[0].Type != apiextensions.Established || c[0].Status != apiextensions.ConditionFalse || c[0].Reason != cutReason || !strings.Contains(c[0].Message, test.says) {
				t.Errorf("says %+v", c)
			}
			if status := decide(def, names{}, def.CreationTimestamp.Time); isTrue(status.Conditions, apiextensionsv1.Established) {
				t.Error("it is to be established")
			}
			read.DeletionTimestamp = &read.CreationTimestamp
			if again, err := runtimeEncode(codec, read); err != nil || len(again) > 2000 {
				t.Errorf("what goes is written in %d bytes: %v", len(again), err)
			}
		})
	}
}

func runtimeEncode(codec cutting, stored *apiextensions.CustomResourceDefinition) (string, error) {
	var text strings.Builder
	err := codec.Encode(stored, &text)
	return text.String(), err
}
