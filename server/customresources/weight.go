package customresources

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"atoll.dev/atoll/internal/weight"
)

const (
	// MostBytes is how much memory one definition may take, decoded. A schema of nothing, `{}`, takes half a kilobyte: a
	// definition that etcd takes could be a quarter of a gigabyte, and it is in memory as long as it exists.
	MostBytes = 16 << 20
	// MostRules is how many expressions of CEL may be in one definition, its versions together. Who writes it waits until all are
	// compiled, and so does the first request for what it defines.
	MostRules = 1000
	// ExpressionBytes is what a compiled expression takes that is short, and timesExpression how many times its text a long one
	// takes: something stays of each of its names and values, and two characters may be one. Of `self,` eleven times stay.
	ExpressionBytes = 40 << 10
	timesExpression = 20
	// MostPatternBytes is what a regular expression may take, compiled, which it stays: a dozen characters may be 128 MiB.
	MostPatternBytes = 1 << 20
	// envBytes is what a schema takes that has expressions: what may be said in them is compiled for each anew, and stays with
	// them.
	envBytes = 20 << 10
)

// Compiled is what so many expressions of CEL, of so many bytes of text together, take where they are compiled.
func Compiled(expressions, text int) int64 {
	return int64(expressions)*ExpressionBytes + int64(text)*timesExpression
}

// Weight is what a definition takes of the server's memory, by estimate.
type Weight struct {
	// Bytes are those of the definition, decoded.
	Bytes int64
	// Rules are the expressions of CEL in it, which are compiled where it is served, and Compiled the bytes that these take.
	Rules    int
	Compiled int64
	// Pattern is the regular expression in it that takes the most, and PatternBytes what that takes. All of them are among what is
	// compiled.
	Pattern      string
	PatternBytes int64
}

// Sum is all of it, in bytes.
func (w Weight) Sum() int64 { return w.Bytes + w.Compiled }

// add adds so many of another.
func (w *Weight) add(times int, other Weight) {
	w.Bytes += int64(times) * other.Bytes
	w.Rules += times * other.Rules
	w.Compiled += int64(times) * other.Compiled
	if other.PatternBytes > w.PatternBytes {
		w.Pattern, w.PatternBytes = other.Pattern, other.PatternBytes
	}
}

// addPattern adds a regular expression, which is compiled once for all that have the same.
func (w *Weight) addPattern(text string) {
	if text == "" {
		return
	}
	takes := weight.Pattern(text)
	w.Compiled += takes
	if takes > w.PatternBytes {
		w.Pattern, w.PatternBytes = text, takes
	}
}

// Over says why a definition may not weigh so much, and nil if it may.
func (w Weight) Over() error {
	switch {
	case w.Bytes > MostBytes:
		return fmt.Errorf("a CustomResourceDefinition of %s, decoded: one may take %s of memory. It has too many schemas (each property, item and alternative is one), or too long ones, in all its versions together: leave out what need not be checked, by x-kubernetes-preserve-unknown-fields",
			MiB(w.Bytes), MiB(MostBytes))
	case w.Rules > MostRules:
		return fmt.Errorf("a CustomResourceDefinition with %d expressions in x-kubernetes-validations: one may have %d, in all its versions together", w.Rules, MostRules)
	case w.PatternBytes > MostPatternBytes:
		return fmt.Errorf("a CustomResourceDefinition with the regular expression %q, which takes %s of memory, compiled: one may take %s; x{1000} is a thousand times x",
			shortened(w.Pattern), MiB(w.PatternBytes), MiB(MostPatternBytes))
	}
	return nil
}

// shortened is the beginning of a text, for an error.
func shortened(text string) string {
	if len(text) <= 100 {
		return text
	}
	return strings.ToValidUTF8(text[:100], "") + " ..."
}

// MiB is a number of bytes for people, rounded up.
func MiB(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }

// Weigh weighs a definition as storage has it. Each version counts, also where all have the same schema.
func Weigh(stored *apiextensions.CustomResourceDefinition) Weight {
	w := weighSpec(&stored.Spec)
	s := scale{}
	s.add(reflect.ValueOf(&stored.ObjectMeta))
	s.add(reflect.ValueOf(&stored.Status))
	w.Bytes += s.Bytes
	return w
}

// weighSpec weighs the part that all definitions with an equal one share.
func weighSpec(spec *apiextensions.CustomResourceDefinitionSpec) Weight {
	s := scale{}
	s.add(reflect.ValueOf(spec))
	if spec.Validation != nil { // where all versions have the same, it is here
		one := scale{}
		one.add(reflect.ValueOf(spec.Validation))
		s.Weight.add(len(spec.Versions)-1, one.Weight)
	}
	return s.Weight
}

// WeighVersion weighs one version of a definition.
func WeighVersion(v *apiextensionsv1.CustomResourceDefinitionVersion) Weight {
	s := scale{}
	s.add(reflect.ValueOf(v))
	return s.Weight
}

// scale weighs whatever it is given, of whatever type: what a definition has in it is for upstream to say, in each of its
// versions.
type scale struct{ Weight }

const (
	// entryBytes is what an entry of a map takes besides its key and its value: a map has room for more than it has.
	entryBytes = 32
	// mapBytes is what a map takes that has none.
	mapBytes = 48
)

var (
	rule    = reflect.TypeFor[apiextensions.ValidationRule]()
	ruleV1  = reflect.TypeFor[apiextensionsv1.ValidationRule]()
	moment  = reflect.TypeFor[time.Time]()
	props   = reflect.TypeFor[apiextensions.JSONSchemaProps]()
	propsV1 = reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()
)

// add adds what v leads to; its own bytes are part of what it is in.
func (s *scale) add(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		s.Bytes += int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if v.Kind() == reflect.Interface {
			s.Bytes += 8 // what is known of a definition has the text instead
		}
		s.Bytes += int64(v.Elem().Type().Size())
		s.add(v.Elem())
	case reflect.Slice:
		of := v.Type().Elem()
		s.Bytes += int64(v.Len()) * int64(of.Size())
		if leads(of) {
			for i := range v.Len() {
				s.add(v.Index(i))
			}
		}
	case reflect.Array:
		if leads(v.Type().Elem()) {
			for i := range v.Len() {
				s.add(v.Index(i))
			}
		}
	case reflect.Map:
		if v.IsNil() {
			return
		}
		each := int64(v.Type().Key().Size()) + int64(v.Type().Elem().Size()) + entryBytes
		s.Bytes += mapBytes + int64(v.Len())*each
		for entries := v.MapRange(); entries.Next(); {
			s.add(entries.Key())
			s.add(entries.Value())
		}
	case reflect.Struct:
		switch v.Type() {
		case moment:
			return // it leads to a time zone, which is there once
		case rule, ruleV1:
			n, message := 1, v.FieldByName("MessageExpression").Len()
			if message > 0 {
				n++
			}
			s.Rules += n
			s.Compiled += Compiled(n, v.FieldByName("Rule").Len()+message)
		case props, propsV1:
			if v.FieldByName("XValidations").Len() > 0 {
				s.Compiled += envBytes
			}
			s.addPattern(v.FieldByName("Pattern").String())
		}
		for _, i := range leading(v.Type()) {
			s.add(v.Field(i))
		}
	}
}

// leads says whether values of a type lead to others.
func leads(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	case reflect.Array:
		return leads(t.Elem())
	case reflect.Struct:
		return len(leading(t)) > 0
	}
	return false
}

// fields has the fields of types that lead to others, by type: there are some twenty types.
var fields sync.Map

// leading are the fields of a struct that lead to other values.
func leading(t reflect.Type) []int {
	if known, ok := fields.Load(t); ok {
		return known.([]int)
	}
	var found []int
	for i := range t.NumField() {
		if leads(t.Field(i).Type) {
			found = append(found, i)
		}
	}
	fields.Store(t, found)
	return found
}

// weigh weighs the definition, of which the spec is weighed already.
func (d *Definition) weigh() {
	s := scale{d.shared.weight}
	s.add(reflect.ValueOf(&d.ObjectMeta))
	s.add(reflect.ValueOf(&d.Status))
	d.weight = s.Weight
}
