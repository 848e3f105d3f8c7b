package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/runtime/schema"
	strictjson "sigs.k8s.io/json"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// kind is a kind of object that is read.
type kind struct {
	*compile.Kind
	// check reports the first value that the type allows and the API does not,
	// with its path below the document.
	check func(object) (path string, err error)
}

// kinds are in the order in which a Source serves what it has read again. What a
// policy selects comes after the policies, so that a pod and what isolates it,
// from one file, are not served in the unsafe order.
var kinds = func() []kind {
	all := []kind{{Kind: compile.KindNamespace}}
	for _, k := range compile.Kinds {
		all = append(all, kind{Kind: k})
	}
	return append(all, kind{compile.KindNode, checkNode}, kind{compile.KindPod, checkPod})
}()

// kindOf returns the kind of that group and name.
func kindOf(group, name string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.Resource.Group == group && k.Name == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// manifest is one object and where its file says it.
type manifest struct {
	kind   *compile.Kind
	object object
	line   int // of the document or list item, from 1
}

// content is what a file says.
type content struct {
	manifests []manifest
	ignored   []string // what was passed over: kinds that are not ours
}

// fault is what is wrong at a line of a file. Line 0 is the file as a whole.
type fault struct {
	line int
	err  error
}

func (f fault) Error() string { return fmt.Sprintf("line %d: %v", f.line, f.err) }
func (f fault) Unwrap() error { return f.err }

// asFault returns err with its line, if it has one.
func asFault(err error) fault {
	if f, ok := err.(fault); ok {
		return f
	}
	return fault{0, err}
}

// parse reads the documents of a file. The first thing that is wrong is
// returned as a fault, and the content is then to be ignored.
func parse(data []byte) (content, error) {
	if len(data) == 0 {
		// An editor truncates before it writes. Remove a file to empty it.
		return content{}, fault{0, errors.New("file is empty")}
	}
	if err := checkText(data); err != nil {
		return content{}, err
	}
	var c content
	seen := map[string]int{}
	for decoder, line := yaml.NewDecoder(bytes.NewReader(data)), 1; ; {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return content{}, syntaxFault(err, data, line)
		}
		line = document.Line
		if err := c.add(document.Content[0], seen); err != nil {
			return content{}, err
		}
	}
}

// add reads the object or list at n. seen has the lines of the objects so far.
func (c *content) add(n *yaml.Node, seen map[string]int) error {
	if n.Kind == yaml.ScalarNode && n.Tag == nullTag {
		return nil // nothing between two separators
	}
	data, err := toJSON(n)
	if err != nil {
		return err
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return typeFault(n, err)
	}
	if head.APIVersion == "" || head.Kind == "" {
		return fault{n.Line, errors.New("apiVersion or kind is missing")}
	}
	version, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return fault{lineOf(n, "apiVersion"), err}
	}
	if head.APIVersion == "v1" && head.Kind == "List" {
		return c.addItems(n, seen)
	}
	k, ours := kindOf(version.Group, head.Kind)
	switch {
	case !ours:
		c.ignored = append(c.ignored, head.APIVersion+" "+head.Kind)
		return nil
	case version != k.Resource.GroupVersion():
		return fault{lineOf(n, "apiVersion"), fmt.Errorf("%s of version %s is not read, only %s", k.Name, head.APIVersion, k.Resource.Version)}
	}
	return c.addObject(k, n, data, seen)
}

// addItems reads the items of a List.
func (c *content) addItems(n *yaml.Node, seen map[string]int) error {
	for key, value := range fields(n) {
		switch key.Value {
		case "apiVersion", "kind", "metadata":
		case "items":
			if value.Kind != yaml.SequenceNode {
				return fault{value.Line, errors.New("items is not a list")}
			}
			for _, item := range value.Content {
				if err := c.add(item, seen); err != nil {
					return err
				}
			}
		default:
			return fault{key.Line, fmt.Errorf("unknown field %q of a List", key.Value)}
		}
	}
	return nil
}

func (c *content) addObject(k kind, n *yaml.Node, data []byte, seen map[string]int) error {
	var o object = k.New()
	strict, err := strictjson.UnmarshalStrict(data, o)
	if err != nil {
		return typeFault(n, err)
	}
	if len(strict) > 0 {
		return strictFault(n, strict[0])
	}
	if path, err := k.complete(o); err != nil {
		return fault{lineOf(n, path), err}
	}
	m := manifest{kind: k.Kind, object: o, line: n.Line}
	if line, twice := seen[m.key()]; twice {
		return fault{n.Line, fmt.Errorf("%s is already at line %d", m.key(), line)}
	}
	seen[m.key()] = n.Line
	c.manifests = append(c.manifests, m)
	return nil
}

// key names the object among those of all kinds.
func (m manifest) key() string {
	if ns := m.object.GetNamespace(); ns != "" {
		return m.kind.Name + " " + ns + "/" + m.object.GetName()
	}
	return m.kind.Name + " " + m.object.GetName()
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
		return nil, fault{n.Line, err}
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
