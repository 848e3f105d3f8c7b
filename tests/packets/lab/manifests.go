package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Manifests is the folder of Kubernetes manifests that an agent watches.
type Manifests struct{ dir string }

// NewManifests creates an empty folder inside dir.
func NewManifests(dir string) (Manifests, error) {
	folder, err := os.MkdirTemp(dir, "manifests-")
	return Manifests{folder}, err
}

// Dir returns the folder's path.
func (m Manifests) Dir() string { return m.dir }

// Put replaces the content of the file NAME.yaml by objects.
func (m Manifests) Put(name string, objects ...runtime.Object) error {
	var text bytes.Buffer
	for _, object := range objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("write %s.yaml: %w", name, err)
		}
		text.WriteString("---\n")
		text.Write(document)
	}
	return m.Write(name, text.String())
}

// Write replaces the content of the file NAME.yaml. Readers see either the old or the new
// content, never a part.
func (m Manifests) Write(name, text string) error {
	temporary := filepath.Join(m.dir, "."+name+".tmp")
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, m.path(name))
}

// Remove removes the file NAME.yaml.
func (m Manifests) Remove(name string) error { return os.Remove(m.path(name)) }

func (m Manifests) path(name string) string { return filepath.Join(m.dir, name+".yaml") }
