package manifests

import (
	"encoding/json"
	"errors"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	strictjson "sigs.k8s.io/json"
)

// yamlLine finds the line in an error of the YAML package, and what is wrong.
var yamlLine = regexp.MustCompile(`(?s)^yaml: (?:unmarshal errors:\s+)?(?:line (\d+): )?([^\n]*)`)

// parserErrors begin the messages whose lines the YAML package counts from 0.
// They come from its parser; its scanner and decoder count from 1.
var parserErrors = []string{
	"did not find expected <stream-start>",
	"did not find expected <document start>",
	"did not find expected node content",
	"did not find expected '-' indicator",
	"did not find expected key",
	"did not find expected ',' or",
	"found undefined tag handle",
	"found duplicate %",
	"found incompatible YAML document",
}

// unknownAnchor is the one message of the parser that never comes with a line.
var unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)

// yamlFault turns an error of the YAML package into a fault. Its lines count
// from the start of the file; where it names none, it is at line.
func yamlFault(err error, line int) fault {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		return fault{line, err}
	}
	if n, err := strconv.Atoi(m[1]); err == nil {
		line = n
		for _, prefix := range parserErrors {
			if strings.HasPrefix(m[2], prefix) {
				line++
			}
		}
	}
	return fault{line, errors.New(m[2])}
}

// streamFault is yamlFault for an error of reading the next document of data,
// the one before being at line.
func streamFault(err error, data []byte, line int) fault {
	f := yamlFault(err, 1) // an error in the first line comes without it
	m := unknownAnchor.FindStringSubmatch(f.err.Error())
	if m == nil {
		return f
	}
	for i, text := range strings.Split(string(data), "\n") {
		if i+1 >= line && strings.Contains(text, "*"+m[1]) {
			f.line = i + 1
			break
		}
	}
	return f
}

// strictFault turns an unknown or doubled field of the object at n into a fault.
func strictFault(n *yaml.Node, err error) fault {
	var field strictjson.FieldError
	if errors.As(err, &field) {
		return fault{lineOf(n, field.FieldPath()), err}
	}
	return fault{n.Line, err}
}

// typeFault turns an error of decoding the object at n into a fault. Where the
// error does not name its field, the fault is at the object's first line.
func typeFault(n *yaml.Node, err error) fault {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		if line, found := findValue(n, mismatch.Field, mismatch.Value); found {
			return fault{line, errors.New(mismatch.Field + ": got " + mismatch.Value + ", want " + mismatch.Type.String())}
		}
	}
	return fault{n.Line, err}
}

// fields yields the keys and values of a mapping, and nothing for another node.
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

// lineOf returns the line of the field at a path such as
// "spec.ingress[0].ports", or of the last part of it that exists.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for path != "" {
		next, at, rest := step(n, path)
		if next == nil {
			break
		}
		n, line, path = next, at, rest
	}
	return line
}

// step follows the first field or index of a path and returns the value there,
// the line it is at and the rest of the path, or nil where there is none.
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

// describes reports whether a node is the value that encoding/json complains of.
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
