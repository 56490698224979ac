package weight

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"regexp"
)

const (
	// ElementBytes is what an element of a list, a field or an entry of a map takes at most, however short its text is: a schema of
	// nothing, or a container of nothing, is there in the version that was sent, in a list with room for half as many more, and as
	// the server has it.
	ElementBytes = 2048
	// ItemBytes is the same of elements of a list that the object itself has: who says that it is a PodList, wherever it is sent,
	// has so many Pods made of nothing before that is refused.
	ItemBytes = 6144
	// textBytes is what a byte of text takes besides, in all that is made of it until it is answered.
	textBytes = 8
	// mostNested is how deep messages of protobuf are looked into. Of what is deeper each two bytes may be an element.
	mostNested = 1000
)

// Body says how much memory it takes at most to decode an object, or a patch of one, of any kind that has a type: other than Of,
// which is about JSON that becomes maps and slices. multiplied says that it names parts of itself, or of the object, to be there
// more than once, so that the text says little of what becomes of it.
func Body(mediaType string, body []byte) (n int64, multiplied bool) {
	if mediaType == "application/apply-patch+yaml" && json.Valid(body) { // as kubectl and client-go apply
		mediaType = "application/json"
	}
	switch mediaType {
	case "", "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json":
		n = inJSON(body)
	case "application/json-patch+json":
		n, multiplied = inJSON(body), copies(body)
	case "application/vnd.kubernetes.protobuf":
		n = inProtobuf(bytes.TrimPrefix(body, []byte("k8s\x00")), 0)
	case "application/apply-patch+yaml": // of the kind that it is sent to
		n, multiplied = ElementBytes*inYAML(body), anchors(body)
	default:
		n, multiplied = ItemBytes*inYAML(body), anchors(body)
	}
	return textBytes*int64(len(body)) + n, multiplied
}

// inJSON is what the elements in JSON take. What is no JSON is not decoded.
func inJSON(text []byte) (n int64) {
	var quoted, escaped, opened, list bool
	depth := 0
	element := func() {
		if depth == 2 && list {
			n += ItemBytes
		} else {
			n += ElementBytes
		}
	}
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
			continue
		case quoted:
			escaped, quoted = c == '\\', c != '"'
			continue
		case c == ' ', c == '\t', c == '\r', c == '\n':
			continue
		}
		if opened && c != '}' && c != ']' {
			element() // the first one
		}
		opened = false
		switch c {
		case '"':
			quoted = true
		case ',':
			element()
		case '{', '[':
			opened = true
			if depth++; depth == 2 {
				list = c == '['
			}
		case '}', ']':
			depth--
		}
	}
	return n
}

// inYAML counts what may be elements: there is no telling strings from the rest without reading it as YAML, which takes more
// memory than what is counted here.
func inYAML(text []byte) (n int64) {
	for _, c := range text {
		switch c {
		case ',', '-', '{', '[', '\n', '\r', 0x85, 0xA8, 0xA9: // the last three end what is a line, too
			n++
		}
	}
	return n
}

// anchor is what names a part of YAML, so that it can be there again.
var anchor = regexp.MustCompile(`(^|[^0-9A-Za-z&=;/'"])&[^ \t\r\n&]`)

func anchors(text []byte) bool { return anchor.Match(text) }

// copied is an operation of a JSON patch that copies, or may be once its letters are read.
var copied = regexp.MustCompile(`"copy"|\\u00[67]`)

func copies(patch []byte) bool { return copied.Match(patch) }

// inProtobuf is what those parts of a message take that may be elements, up to where it is no message: nothing after that is
// decoded. Around the object is another message, with its kind.
func inProtobuf(message []byte, nested int) (n int64) {
	if nested > mostNested {
		return int64(len(message)/2) * ElementBytes
	}
	for len(message) > 0 {
		tag, length := binary.Uvarint(message)
		if length <= 0 {
			return n
		}
		message = message[length:]
		switch tag & 7 {
		case 0:
			if _, length = binary.Uvarint(message); length <= 0 {
				return n
			}
			message = message[length:]
		case 1, 5:
			if length = 8; tag&7 == 5 {
				length = 4
			}
			if len(message) < length {
				return n
			}
			message = message[length:]
		case 2:
			of, length := binary.Uvarint(message)
			if length <= 0 || of > uint64(len(message)-length) {
				return n
			}
			if n += ElementBytes; nested == 1 {
				n += ItemBytes - ElementBytes
			}
			n += inProtobuf(message[length:length+int(of)], nested+1)
			message = message[length+int(of):]
		case 3, 4: // a group, which nothing is made of
		default:
			return n
		}
	}
	return n
}
