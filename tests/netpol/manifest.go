package netpol

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Manifest returns objects as YAML, such as policies and pods of a State.
func Manifest[T any](objects ...T) string {
	var out strings.Builder
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			text = []byte("# " + err.Error() + "\n")
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.String()
}
