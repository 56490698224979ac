package expressions

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
)

// upstreams is Kubernetes' environment, before Environment changes the one of this process.
var upstreams = func() environment.EnvSet {
	return *environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}()

// of is an environment with a variable of any type, and patches and objects as mutating policies have them.
func of(t *testing.T, base *environment.EnvSet) *cel.Env {
	t.Helper()
	extended, err := base.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("object", cel.DynType), common.ResolverEnvOption(&mutation.DynamicTypeResolver{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	return extended.StoredExpressionsEnv()
}

func estimated(t *testing.T) *cel.Env {
	t.Helper()
	base := upstreams
	with, err := withEstimates(&base)
	if err != nil {
		t.Fatal(err)
	}
	return of(t, with)
}

func evaluate(t *testing.T, env *cel.Env, expression string, object any) (ref.Val, uint64, error) {
	t.Helper()
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", expression, issues.Err())
	}
	program, err := env.Program(ast, cel.InterruptCheckFrequency(100))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	v, details, err := program.Eval(map[string]any{"object": object})
	cost := uint64(0)
	if details != nil && details.ActualCost() != nil {
		cost = *details.ActualCost()
	}
	return v, cost, err
}

// doubled is an expression of a value that has 2^times others: one that refers to the one before twice, again and again.
func doubled(of string, times int) string {
	text := "[" + of + "]"
	for range times {
		text += ".map(x, [x, x])"
	}
	return text
}

func TestCallsThatTakeTooMuch(t *testing.T) {
	env := estimated(t)
	long := strings.Repeat("x", 1_000_000)
	object := map[string]any{"pattern": strings.Repeat("(x{1000})", 200), "long": long, "many": strings.Split(strings.Repeat("x,", 200_000)+"y", ","), "rows": func() (rows []any) {
		for i := range 2_000 {
			rows = append(rows, map[string]any{"n": i})
		}
		return rows
	}()}
	deep, other := doubled("1", 45), doubled("2", 45)
	for _, expression := range []string{
		"lists.range(50000000).size() > 0",
		"lists.range(9223372036854775807).size() > 0",
		"object.long.replace('', object.long) != ''",
		"object.long.replace('x', object.long) != ''",
		"object.long.replace('x', object.long, 100) != ''",
		"object.many.join(object.long) != ''",
		"lists.range(1000).map(x, object.long).join() != ''",
		"'" + strings.Repeat("%.999999f", 11) + "'.format([1.0" + strings.Repeat(", 1.0", 10) + "]) != ''",
		"'%s'.format([" + deep + "]) != ''",
		deep + " == " + deep,
		deep + " != " + other,
		deep + " in [" + deep + "]",
		"[" + deep + "].indexOf(" + deep + ") == 0",
		"optional.of(" + deep + ") == optional.of(" + deep + ")",
		"{'a': " + deep + "} == {'a': " + deep + "}",
		"Object{a: " + deep + "} == Object{a: " + deep + "}",
		"JSONPatch{op: 'add', path: '/a', value: " + deep + "} == JSONPatch{op: 'add', path: '/a', value: " + deep + "}",
		"[" + deep + "].exists(x, x == " + deep + " || true)",
		"dyn(" + deep + ").max() == 1",
		"dyn(" + deep + ").isSorted()",
		"[dyn(" + deep + ")].lastIndexOf(dyn(1)) == 0",
		"(" + deep + ").flatten(60).size() > 0",
		"'x'.matches(object.pattern)",
		"'x'.find(object.pattern) == ''",
		"'x'.findAll(object.pattern, 1) == []",
		"'x'.matches(object.long)",
		"object.many.distinct().size() > 0",
		"object.rows.distinct().size() > 0",
		"sets.contains(object.many, object.many)",
		"sets.equivalent(object.rows, object.rows)",
		"sets.intersects(object.rows, object.rows)",
		"[lists.range(900000)].map(x, x + x).size() > 0",
	} {
		t.Run(expression[:min(len(expression), 60)], func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			_, _, err := evaluate(t, env, expression, object)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), "would cost more than the 1000000 that an expression may") {
				t.Errorf("it ends with %v", err)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 200 {
				t.Errorf("it takes %d MiB", took)
			}
			t.Logf("%v, %d MiB", time.Since(began), (after.TotalAlloc-before.TotalAlloc)>>20)
		})
	}
}

// A regular expression that is written is compiled with the expression.
func TestPatternsThatTakeTooMuch(t *testing.T) {
	env := estimated(t)
	for expression, ok := range map[string]bool{
		"'x'.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')":                true,
		"matches('x', '^[a-z]{1,253}$')":                                     true,
		"'x'.find('[a-z]+') == 'x' && 'x'.findAll('[a-z]') == ['x']":         true,
		"'x'.matches('((x{10}){10}){10}' + '')":                              true, // as it is evaluated
		"'x'.matches('(((abcdefghijkl){10}){10}){10}')":                      false,
		"matches('x', '(((abcdefghijkl){10}){10}){10}')":                     false,
		"['x'].all(x, x.find('(((abcdefghijkl){10}){10}){10}') == '')":       false,
		"'x'.findAll('(((abcdefghijkl){10}){10}){10}', 2) == [] || 1 == 1":   false,
		"{'a': 'x'}.a.findAll('(((abcdefghijkl){10}){10}){10}').size() == 0": false,
	} {
		_, issues := env.Compile(expression)
		if err := issues.Err(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "the regular expression takes more than 256 KiB of memory, compiled") {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

// What is not beyond the limit is as upstream has it: the result, the error, and what it costs.
func TestCallsAreUpstreams(t *testing.T) {
	ours, theirs := estimated(t), of(t, &upstreams)
	object := map[string]any{
		"name": "a-b-c", "list": []any{"a", "b", "a"}, "numbers": []any{1, 2.0, 3}, "map": map[string]any{"a": []any{1}},
		"nested": []any{[]any{1, 2}, []any{3, []any{4}}}, "none": nil,
	}
	for _, expression := range []string{
		"lists.range(3)", "lists.range(0)", "lists.range(-1)", "lists.range(object.numbers[0])", "lists.range(object.name)",
		"object.name.replace('-', '+')", "object.name.replace('-', '+', 1)", "object.name.replace('', '.', -1)", "object.name.replace(object.list, 'a')", "object.list.replace('a', 'b')",
		"object.list.join()", "object.list.join(', ')", "object.numbers.join()", "object.name.join()", "['a', 'b'].map(x, x + x).join('-')",
		"'%s %d %.2f %x'.format([object.name, 1, 1.5, 'a'])", "'%s'.format([object.map])", "'%s'.format(object.list)", "'%d'.format(object.list)", "object.name.format([])",
		"object.list == ['a', 'b', 'a']", "object.list != ['a']", "object.map == {'a': [1]}", "object.map == object.list", "object.none == null", "dyn(1) == dyn('a')", "object.nothing == 1",
		"'a' in object.list", "[1, 2] in object.nested", "'a' in object.map", "'z' in object.map", "object.name in ['a', 'a-b-c']", "1 in object.name", "object.nothing in object.list",
		"object.list + ['c']", "object.list + object.nested", "object.name + 'x'", "1 + 2", "1.5 + 2.5", "b'a' + b'b'", "object.name + 1", "object.list + 1", "object.numbers[0] + object.numbers[2]",
		"timestamp('2026-01-01T00:00:00Z') + duration('1h')", "duration('1h') + duration('1m')", "[] + []",
		"object.list.map(x, x + '!')", "object.list.filter(x, x == 'a')", "object.list.exists_one(x, x == 'b')", "object.list.all(x, x in object.list)",
		"object.nested.flatten()", "object.nested.flatten(2)", "object.nested.flatten(-1)", "object.name.flatten()",
		"object.list.distinct()", "object.nested.distinct()", "['c', 'a'].sort()", "object.list.indexOf('b')", "object.name.indexOf('b')", "object.name.indexOf('b', 3)", "object.name.lastIndexOf('-')", "object.list.lastIndexOf('a')", "object.nested.indexOf([1, 2])",
		"sets.contains(object.list, ['a'])", "sets.equivalent(object.list, ['a', 'b'])", "sets.intersects(object.list, ['z'])", "sets.contains(object.name, ['a'])",
		"optional.of(1) == optional.of(1)", "optional.none() == optional.of(1)", "object.?name.orValue('') == 'a-b-c'",
		"Object{a: 1} == Object{a: 1}", "Object{a: Object.a{b: [1]}} == Object{a: Object.a{b: [2]}}", "JSONPatch{op: 'remove', path: '/a'} == JSONPatch{op: 'remove', path: '/a'}",
		"quantity('1Gi').add(quantity('1')) == quantity('1073741825')", "url('https://a/b') == url('https://a/b')", "ip('10.0.0.1') == ip('10.0.0.1')",
		"type(object.list) == list", "lists.range(600).distinct().size() == 600", "lists.range(999).map(x, x == 0).size()", "lists.range(1000000).size()", "object.name.matches('^a')",
	} {
		v, cost, err := evaluate(t, ours, expression, object)
		theirV, theirCost, theirErr := evaluate(t, theirs, expression, object)
		if err != nil {
			cost, theirCost = 0, 0 // after an error in an argument, those that follow are evaluated and counted by some of upstream's calls
		}
		if fmt.Sprint(err) != fmt.Sprint(theirErr) || cost != theirCost {
			t.Errorf("%s: error %v, cost %d; of upstream %v, %d", expression, err, cost, theirErr, theirCost)
		}
		if err == nil && (types.Equal(v, theirV) != types.True || v.Type().TypeName() != theirV.Type().TypeName()) {
			t.Errorf("%s: %v; of upstream %v", expression, v, theirV)
		}
	}
}

func TestCheckResult(t *testing.T) {
	env := estimated(t)
	for expression, ok := range map[string]bool{
		"[1, 2]":                         true,
		doubled("1", 18):                 true,
		doubled("1", 45):                 false,
		"Object{a: Object.a{b: [1, 2]}}": true,
		"Object{a: Object.a{b: " + doubled("1", 45) + "}}":                                     false,
		"[JSONPatch{op: 'add', path: '/a', value: " + doubled("1", 45) + "}]":                  false,
		"[JSONPatch{op: 'add', path: '/a', value: Object.a{b: " + doubled("1", 45) + "}}]":     false,
		"[JSONPatch{op: 'add', path: '/a', value: Object.a{b: [1]}}, JSONPatch{op: 'remove'}]": true,
	} {
		v, _, err := evaluate(t, env, expression, nil)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		if err := CheckResult(v); (err == nil) != ok {
			t.Errorf("%.80s: %v", expression, err)
		}
	}
}

// fieldsOf looks where upstream has the fields.
func TestFieldsOf(t *testing.T) {
	of := map[string]ref.Val{"a": types.Int(1)}
	if got := fieldsOf(dynamic.NewObjectVal(types.NewObjectType("Object"), of)); len(got) != 1 || got["a"] != types.Int(1) {
		t.Errorf("fieldsOf is %v, want %v", got, of)
	}
}

// What compiles in upstream's environment of the process compiles in this one.
func TestEnvironmentIsTheProcess(t *testing.T) {
	ours := Environment()
	if shared := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()); shared != ours {
		t.Fatal("upstream has another environment")
	}
	for name, env := range map[string]*cel.Env{"stored": ours.StoredExpressionsEnv(), "new": ours.NewExpressionsEnv()} {
		if _, _, err := evaluate(t, env, "lists.range(50000000).size() > 0", nil); err == nil || !strings.Contains(err.Error(), "would cost more than") {
			t.Errorf("%s expressions: %v", name, err)
		}
	}
}
