// Package weight says how much memory it takes to unpack what somebody else sent, before it is unpacked: a short text may become
// a hundred times as much. It reads the text alone and keeps nothing of it: JSON, as it comes in, and bodies of requests
// (object.go).
package weight

// Of is how many bytes of memory it takes at most to unpack a text of JSON: what becomes of it, be that maps and slices or the
// fields of a type, the text as it is read, in twice the room, and copies.
func Of(text []byte) int64 {
	s := Scale{N: 8}
	s.Add(text)
	return s.N
}

// Scale weighs JSON as it comes in, see Of.
type Scale struct {
	N               int64 // bytes
	last            byte  // of what is no string
	quoted, escaped bool
}

// Add has the next part of the text.
func (s *Scale) Add(text []byte) {
	s.N += 6 * int64(len(text)) // 6: three bytes become of each that is no UTF-8
	for _, c := range text {
		switch {
		case s.escaped:
			s.escaped = false
			continue
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
			continue
		}
		switch c {
		case '"':
			s.quoted = true
			s.N += 24
			continue
		case '{':
			s.N += 48
		case '[':
			s.N += 24 + 32
		case ',':
			s.N += 56
		case ':':
			s.N += 64
			if s.last == '{' {
				s.N += 288
			}
		default:
			continue
		}
		s.last = c
	}
}
