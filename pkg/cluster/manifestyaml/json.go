package manifestyaml

import (
	"encoding/json"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// appendJSON appends the JSON of a node. It is for what manifests usually are and gives up (ok is
// false) where the YAML package has to decide: aliases, merged maps, keys that are there twice, tags
// of applications, and faults. Large clusters are mostly the other nodes, and the YAML package needs
// several times as long for them.
func appendJSON(data []byte, n *yaml.Node) (_ []byte, ok bool) {
	switch {
	case n.Kind == yaml.MappingNode && n.ShortTag() == mapTag && hasPlainKeys(n):
		return appendMap(data, n)
	case n.Kind == yaml.SequenceNode && n.ShortTag() == listTag:
		return appendList(data, n)
	case n.Kind == yaml.ScalarNode:
		return appendScalar(data, n)
	}
	return nil, false
}

func appendMap(data []byte, n *yaml.Node) (_ []byte, ok bool) {
	data = append(data, '{')
	for key, value := range fields(n) {
		if data[len(data)-1] != '{' {
			data = append(data, ',')
		}
		data = append(appendText(data, key.Value), ':')
		if data, ok = appendJSON(data, value); !ok {
			return nil, false
		}
	}
	return append(data, '}'), true
}

// hasPlainKeys reports whether the keys of a mapping are different scalars, and none merges another
// mapping.
func hasPlainKeys(n *yaml.Node) bool {
	var keys []string
	for key := range fields(n) {
		if key.Kind != yaml.ScalarNode || key.ShortTag() == mergeTag {
			return false
		}
		keys = append(keys, key.Value)
	}
	slices.Sort(keys)
	return len(slices.Compact(keys)) == len(n.Content)/2
}

func appendList(data []byte, n *yaml.Node) (_ []byte, ok bool) {
	data = append(data, '[')
	for i, item := range n.Content {
		if i > 0 {
			data = append(data, ',')
		}
		if data, ok = appendJSON(data, item); !ok {
			return nil, false
		}
	}
	return append(data, ']'), true
}

func appendScalar(data []byte, n *yaml.Node) (_ []byte, ok bool) {
	switch n.ShortTag() {
	case stringTag, timestampTag:
		return appendText(data, n.Value), true
	case mergeTag: // outside of a key
		return nil, false
	case intTag:
		if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil && strconv.FormatInt(i, 10) == n.Value {
			return append(data, n.Value...), true
		}
	}
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, false
	}
	text, err := json.Marshal(value)
	return append(data, text...), err == nil
}

// appendText appends a string. Most need no escapes.
func appendText(data []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // a string has no error
			return append(data, quoted...)
		}
	}
	return append(append(append(data, '"'), text...), '"')
}
