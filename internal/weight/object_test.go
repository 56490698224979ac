package weight

import (
	"strings"
	"testing"
)

// TestBody: each element counts, and what says nothing of elements does not.
func TestBody(t *testing.T) {
	field := func(number byte, content string) string {
		return string([]byte{number<<3 | 2, byte(len(content))}) + content
	}
	for _, test := range []struct {
		name, mediaType, body string
		elements, items       int64
		multiplied            bool
	}{
		{"nothing", "", ``, 0, 0, false},
		{"an object of nothing", "application/json", `{}`, 0, 0, false},
		{"elements", "application/json", "[ {},\n{} , {}]", 3, 0, false},
		{"elements of the wrong type", "application/merge-patch+json", `[0,0,0]`, 3, 0, false},
		{"nested", "application/strategic-merge-patch+json", `{"a":{"b":[[],[]]}}`, 4, 0, false},
		{"a list", "application/json", `{"kind":"PodList","items":[{},{}],"a":{"b":[{},{}]}}`, 6, 2, false},
		{"in strings", "application/json", `{"a":"{,[\",\\"}`, 1, 0, false},
		{"a patch", "application/json-patch+json", `[{"op":"add"}]`, 2, 0, false},
		{"a patch that copies", "application/json-patch+json", `[{"op":"copy"}]`, 2, 0, true},
		{"in other letters", "application/json-patch+json", `[{"op":"c\u006fpy"}]`, 2, 0, true},
		{"YAML", "application/yaml", "a:\n- {}\n-\n- - b\n", 0, 9, false},
		{"YAML of other lines", "application/yaml", "-\r-\u0085-\u2028-", 0, 7, false},
		{"YAML that says & and *", "application/apply-patch+yaml", "a: b & c, 'd&e', http://f?g=h&i=j, *k\n", 4, 0, false},
		{"what is applied, mostly", "application/apply-patch+yaml", `{"data":{"a.csv":"1,2,3\n- &a 4,5\n"}}`, 2, 0, false},
		{"YAML with anchors", "application/yaml", "a: &a [{}]\nb: *a\n", 0, 4, true},
		{"YAML that begins with one", "application/yaml", "&a {}", 0, 1, true},
		{"YAML with one in a flow", "application/yaml", "[&a {},*a]", 0, 3, true},
		{"of a type nobody decodes", "text/plain", "-\n", 0, 2, false},
		{"protobuf", "application/vnd.kubernetes.protobuf", "k8s\x00" + field(2, strings.Repeat(field(1, ""), 3)), 1, 3, false},
		{"up to where it is none", "application/vnd.kubernetes.protobuf", field(1, "") + "\x07" + field(1, ""), 1, 0, false},
		{"after numbers and groups", "application/vnd.kubernetes.protobuf", "\x08\x01\x09........\x0d....\x0b\x0c" + field(1, ""), 1, 0, false},
		{"of text", "application/vnd.kubernetes.protobuf", field(1, "of text"), 1, 0, false},
		{"that is not all there", "application/vnd.kubernetes.protobuf", "\x0a\x7f" + field(1, ""), 0, 0, false},
	} {
		n, multiplied := Body(test.mediaType, []byte(test.body))
		if want := test.elements*ElementBytes + test.items*ItemBytes + textBytes*int64(len(test.body)); n != want || multiplied != test.multiplied {
			t.Errorf("%s: %d bytes, multiplied %t; want %d, %t", test.name, n, multiplied, want, test.multiplied)
		}
	}
	deep := ""
	for len(deep) < 100 {
		deep = field(1, deep)
	}
	for range 5000 {
		length := len(deep)
		deep = string([]byte{1<<3 | 2, byte(length) | 0x80, byte(length>>7) | 0x80, byte(length >> 14)}) + deep
	}
	if n, _ := Body("application/vnd.kubernetes.protobuf", []byte(deep)); n < 5000*ElementBytes {
		t.Errorf("5,000 messages in each other count for %d bytes", n)
	}
}
