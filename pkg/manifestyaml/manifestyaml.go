// Package manifestyaml reads YAML and JSON as kubectl does, and knows the line of
// every field. It owns the text of manifests: documents, lists of objects, values and
// what is wrong with them. It knows no kind of object, no directories, and does
// no I/O.
package manifestyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	strictjson "sigs.k8s.io/json"
)

// Fault is what is wrong at a line of a file. Line 0 is the file as a whole.
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

// Documents yields the documents of a file, without those that are empty. An error is a
// Fault, and the last that is yielded.
func Documents(data []byte) iter.Seq2[*Document, error] {
	return func(yield func(*Document, error) bool) {
		if err := checkText(data); err != nil {
			yield(nil, err)
			return
		}
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
			d := &Document{node: root.Content[0], file: data, above: root.HeadComment}
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
	file     []byte // all of the file
	above    string // the comment above the document
	fallback Header // what an item has that its list says for it
	json     []byte // once it is needed
}

// Header is what every object has.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Line returns the line at which the document begins, from 1.
func (d *Document) Line() int { return d.node.Line }

// LineOf returns the line of the field at a path such as "spec.ingress[0].ports",
// or of the last part of the path that exists.
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
	data, err := d.encoded()
	if err != nil {
		return h, err
	}
	h = d.fallback
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &h); err != nil {
		return h, typeFault(d.node, err)
	}
	return h, nil
}

// abbreviate returns the beginning of a text that may be long.
func abbreviate(s string) string {
	const most = 40
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}

// Items returns the items of a List. Of its fields, only those of lists may be there. In
// typed lists, items need not say what they are: it is then of.
func (d *Document) Items(of Header) ([]*Document, error) {
	var items []*Document
	for key, value := range fields(d.node) {
		switch key.Value {
		case "apiVersion", "kind", "metadata":
		case "items":
			if value.Kind != yaml.SequenceNode {
				return nil, Fault{value.Line, errors.New("items is not a list")}
			}
			for _, item := range value.Content {
				if i := (&Document{node: item, file: d.file, fallback: of}); !i.empty() {
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
	data, err := d.encoded()
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

// Map returns the document as JSON has it, with integers as int64. An item of a typed list
// has what the list says for it.
func (d *Document) Map() (map[string]any, error) {
	data, err := d.encoded()
	if err != nil {
		return nil, err
	}
	m := map[string]any{"apiVersion": d.fallback.APIVersion, "kind": d.fallback.Kind}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &m); err != nil {
		return nil, typeFault(d.node, err)
	}
	return m, nil
}

// encoded returns the document as JSON.
func (d *Document) encoded() ([]byte, error) {
	if d.json == nil {
		data, err := toJSON(d.node)
		if err != nil {
			return nil, err
		}
		d.json = data
	}
	return d.json, nil
}

const (
	nullTag      = "!!null"
	stringTag    = "!!str"
	timestampTag = "!!timestamp"
	mergeTag     = "!!merge"
)

// toJSON renders a node the way kubectl would: keys and dates are strings.
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

// plainStrings makes strings of what YAML alone takes for something else. It
// need not follow aliases: what they stand for is in the tree, too.
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

// checkText refuses what YAML does not allow in a file at all. The YAML reader
// looks ahead and could not say where it was met.
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
