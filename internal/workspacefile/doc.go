// Package workspacefile is the form of the file that `atoll workspace export` writes and `atoll workspace import` reads:
// NewWriter and Open.
//
// The file is lines of text:
//
//	{"atollWorkspace":1,...}                  the Header; its beginning says what file this is, and in which form
//	{"prefix":"/configmaps","key":"ns/a",...} a Row each, with what is stored in base64
//	atoll-workspace-sha256:<64 hexadecimal digits of every byte before>
//
// What always holds: a file that is cut off, changed in any bit, in a newer form, or no such file at all is refused by Open
// before a row is read out of it. The checksum is for accidents; it is no signature.
//
// It touches no file but the one that it is given. The server writes and reads (package server), the commands check.
package workspacefile
