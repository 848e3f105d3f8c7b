// Package manifestyaml reads YAML and JSON as kubectl does, and knows the line of every
// field. It handles the text of manifests: documents, lists of objects, values and their
// errors. It knows no kinds or directories, and does no I/O.
package manifestyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	strictjson "sigs.k8s.io/json"
)

// Fault is an error at a line of a file. Line 0 means the whole file.
type Fault struct {
	Line int
	Err  error
}

func (f Fault) Error() string { return fmt.Sprintf("line %d: %v", f.Line, f.Err) }
func (f Fault) Unwrap() error { return f.Err }

// AsFault returns err with its line, if it has one.
func AsFault(err error) Fault {
	if f, ok := err.(Fault); ok {
		return f
	}
	return Fault{0, err}
}

// Documents yields the non-empty documents of a file. It stops after an error, which is a
// Fault.
func Documents(data []byte) iter.Seq2[*Document, error] {
	return func(yield func(*Document, error) bool) {
		if err := checkText(data); err != nil {
			yield(nil, err)
			return
		}
		lines := sync.OnceValue(func() []string { return strings.Split(string(data), "\n") })
		for decoder, line := yaml.NewDecoder(bytes.NewReader(data)), 1; ; {
			var root yaml.Node
			err := decoder.Decode(&root)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, syntaxFault(err, data, line))
				return
			}
			line = root.Line
			d := &Document{node: root.Content[0], lines: lines, above: root.HeadComment}
			if !d.empty() && !yield(d, nil) {
				return
			}
		}
	}
}

// Document is a document of a file, or an item of a list in it. It may be used by
// one goroutine at a time.
type Document struct {
	node     *yaml.Node
	lines    func() []string // of the whole file, shared by its documents
	above    string          // the comment above the document
	fallback Header          // the list's header for items without their own
}

// Header is the version and kind of an object.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Line returns the line at which the document begins, from 1.
func (d *Document) Line() int { return d.node.Line }

// LineOf returns the line of the field at a path such as "spec.ingress[0].ports", or of the
// last existing part of the path.
func (d *Document) LineOf(path string) int {
	line, _ := find(d.node, path)
	return line
}

// Has reports whether the document has a field at a path.
func (d *Document) Has(path string) bool {
	_, found := find(d.node, path)
	return found
}

// empty reports whether there is nothing between two separators.
func (d *Document) empty() bool { return d.node.Kind == yaml.ScalarNode && d.node.Tag == nullTag }

// Header returns the version and the kind of the object, empty where they are missing.
func (d *Document) Header() (Header, error) {
	var h Header
	switch d.node.Kind {
	case yaml.ScalarNode:
		return h, Fault{d.Line(), fmt.Errorf("%q is text, want an object with apiVersion and kind", abbreviate(d.node.Value))}
	case yaml.SequenceNode:
		return h, Fault{d.Line(), errors.New("a list, want an object with apiVersion and kind; several objects are separated by lines of ---, or are the items of a List")}
	}
	if h, ok := d.plainHeader(); ok {
		return h, nil
	}
	data, err := toJSON(d.node)
	if err != nil {
		return h, err
	}
	h = d.fallback
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &h); err != nil {
		return h, typeFault(d.node, err)
	}
	return h, nil
}

// plainHeader returns the header if both of its fields are texts, as they are except by mistake. The
// rest of the document need not be decoded for it: definitions of custom resources have megabytes.
func (d *Document) plainHeader() (h Header, ok bool) {
	h = d.fallback
	for key, value := range fields(d.node) {
		field := map[string]*string{"apiVersion": &h.APIVersion, "kind": &h.Kind}[key.Value]
		switch {
		case key.ShortTag() == mergeTag, field != nil && value.ShortTag() != stringTag:
			return Header{}, false
		case field != nil:
			*field = value.Value
		}
	}
	return h, h.APIVersion != "" && h.Kind != ""
}

// abbreviate returns the beginning of a long text.
func abbreviate(s string) string {
	const most = 40
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}

// Items returns the items of a List, which may have no fields but those of lists. Items of
// typed lists may lack one: they then get header.
func (d *Document) Items(header Header) ([]*Document, error) {
	var items []*Document
	for key, value := range fields(d.node) {
		switch key.Value {
		case "apiVersion", "kind", "metadata":
		case "items":
			if value.Kind != yaml.SequenceNode {
				return nil, Fault{value.Line, errors.New("items is not a list")}
			}
			for _, item := range value.Content {
				if i := (&Document{node: item, lines: d.lines, fallback: header}); !i.empty() {
					items = append(items, i)
				}
			}
		default:
			return nil, Fault{key.Line, fmt.Errorf("unknown field %q of a List", key.Value)}
		}
	}
	return items, nil
}

// Decode reads the document into an API object, strictly: an unknown field is an
// error.
func (d *Document) Decode(into any) error {
	data, err := toJSON(d.node)
	if err != nil {
		return err
	}
	strict, err := strictjson.UnmarshalStrict(data, into)
	if err != nil {
		return typeFault(d.node, err)
	}
	if len(strict) > 0 {
		return strictFault(d.node, strict[0])
	}
	return nil
}

// Map returns the document with JSON types, and integers as int64. An item of a typed list
// gets the header of the list.
func (d *Document) Map() (map[string]any, error) {
	data, err := toJSON(d.node)
	if err != nil {
		return nil, err
	}
	m := map[string]any{"apiVersion": d.fallback.APIVersion, "kind": d.fallback.Kind}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &m); err != nil {
		return nil, typeFault(d.node, err)
	}
	return m, nil
}

const (
	nullTag      = "!!null"
	stringTag    = "!!str"
	timestampTag = "!!timestamp"
	mergeTag     = "!!merge"
)

// toJSON renders a node as kubectl does: keys and dates are strings.
func toJSON(n *yaml.Node) ([]byte, error) {
	plainStrings(n)
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, yamlFault(err, n.Line)
	}
	data, err := json.Marshal(v)
	if err != nil { // a NaN
		return nil, Fault{n.Line, err}
	}
	return data, nil
}

// plainStrings converts scalars that only YAML types, such as dates, to strings. It need not
// follow aliases, because their targets are in the tree too.
func plainStrings(n *yaml.Node) {
	if n.ShortTag() == timestampTag {
		n.Tag = stringTag
	}
	for key := range fields(n) {
		if key.Kind == yaml.ScalarNode && key.ShortTag() != mergeTag {
			key.Tag = stringTag
		}
	}
	for _, child := range n.Content {
		plainStrings(child)
	}
}

// checkText refuses characters that YAML does not allow. The YAML reader looks ahead and
// could not report their line.
func checkText(data []byte) error {
	line := 1
	for rest := data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			return Fault{line, fmt.Errorf("byte %#02x is not UTF-8", rest[0])}
		case r == '\n':
			line++
		case unicode.IsControl(r) && r != '\t' && r != '\r' && r != '\u0085':
			return Fault{line, fmt.Errorf("control character %U", r)}
		}
		rest = rest[size:]
	}
	return nil
}
