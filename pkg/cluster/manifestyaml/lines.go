package manifestyaml

import (
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	strictjson "sigs.k8s.io/json"
)

// syntaxFault converts an error of reading the next document of data to a Fault, at line if
// the error has none. Something that the end of the file interrupts, such as an open quote,
// is a Fault at its beginning.
func syntaxFault(err error, data []byte, line int) Fault {
	var at *yaml.LoadError
	if errors.As(err, &at) && at.ContextMark.Line > 0 && at.Mark.Index >= utf8.RuneCount(data) {
		return Fault{at.ContextMark.Line, yamlProblem(at)}
	}
	return yamlFault(err, line)
}

// yamlFault converts an error of the YAML package to a Fault, at line if the error has none.
func yamlFault(err error, line int) Fault {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		return Fault{line, err}
	}
	if at.Mark.Line > 0 {
		line = at.Mark.Line
	}
	return Fault{line, yamlProblem(at)}
}

// yamlProblem returns the error without its position.
func yamlProblem(at *yaml.LoadError) error {
	if at.ContextMsg == "" {
		return errors.New(at.Message)
	}
	return errors.New(at.Message + " " + at.ContextMsg)
}

// strictFault converts the error of an unknown or duplicate field of the object at n to a
// Fault.
func strictFault(n *yaml.Node, err error) Fault {
	var field strictjson.FieldError
	if errors.As(err, &field) {
		line, _ := find(n, field.FieldPath())
		return Fault{line, err}
	}
	return Fault{n.Line, err}
}

// typeFault converts an error of decoding the object at n to a Fault, at the object's first
// line if the error does not name its field.
func typeFault(n *yaml.Node, err error) Fault {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		if line, found := findValue(n, mismatch.Field, mismatch.Value); found {
			return Fault{line, errors.New(mismatch.Field + ": got " + mismatch.Value + ", want " + mismatch.Type.String())}
		}
	}
	return Fault{n.Line, err}
}

// fields yields the keys and values of a mapping, and nothing for other nodes.
func fields(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// find returns the line of the field at a path, or of the last existing part of the path, and
// whether the whole path exists.
func find(n *yaml.Node, path string) (line int, found bool) {
	line = n.Line
	for path != "" {
		next, at, rest := step(n, path)
		if next == nil {
			return line, false
		}
		n, line, path = next, at, rest
	}
	return line, true
}

// step follows the first field or index of a path. It returns the value there, its line and
// the rest of the path, or nil if it does not exist.
func step(n *yaml.Node, path string) (next *yaml.Node, line int, rest string) {
	switch n.Kind {
	case yaml.AliasNode:
		return step(n.Alias, path)
	case yaml.MappingNode:
		for key, value := range fields(n) {
			if rest, found := cutField(path, key.Value); found {
				return value, key.Line, rest
			}
		}
	case yaml.SequenceNode:
		index, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
		if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line, strings.TrimPrefix(rest, ".")
		}
	}
	return nil, 0, ""
}

// cutField removes a first field from a path.
func cutField(path, field string) (rest string, found bool) {
	rest, found = strings.CutPrefix(path, field)
	if !found || rest != "" && rest[0] != '.' && rest[0] != '[' {
		return "", false
	}
	return strings.TrimPrefix(rest, "."), true
}

// findValue returns the line of the first value of a JSON type, described as
// encoding/json does ("string", "number 1.5"), at or below a path that names
// no list index and no map key.
func findValue(n *yaml.Node, path, value string) (line int, found bool) {
	if path == "" && describes(value, n) {
		return n.Line, true
	}
	switch n.Kind {
	case yaml.AliasNode:
		return findValue(n.Alias, path, value)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if line, found := findValue(item, path, value); found {
				return line, true
			}
		}
	case yaml.MappingNode:
		for key, child := range fields(n) {
			rest, here := "", path == ""
			if !here {
				rest, here = cutField(path, key.Value)
			}
			if !here {
				continue
			}
			if line, found := findValue(child, rest, value); found {
				return line, true
			}
		}
	}
	return 0, false
}

// describes reports whether a node is the value in an error of encoding/json.
func describes(value string, n *yaml.Node) bool {
	switch n.Kind {
	case yaml.MappingNode:
		return value == "object"
	case yaml.SequenceNode:
		return value == "array"
	case yaml.ScalarNode:
	default:
		return false
	}
	switch n.ShortTag() {
	case "!!bool":
		return value == "bool"
	case "!!int", "!!float":
		data, err := toJSON(n)
		return value == "number" || err == nil && value == "number "+string(data)
	default:
		return strings.HasPrefix(value, "string")
	}
}
