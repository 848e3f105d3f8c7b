package manifests

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/manifestyaml"
)

// fault is what is wrong at a line of a file.
type fault = manifestyaml.Fault

// kinds are in the order in which a Source serves what it has read again. What a
// policy selects comes after the policies, so that a pod and what isolates it,
// from one file, are not served in the unsafe order.
var kinds = slices.Concat([]*compile.Kind{compile.KindNamespace}, compile.Kinds, []*compile.Kind{compile.KindNode, compile.KindPod})

// kindOf returns the kind of that group and name.
func kindOf(group, name string) (kind *compile.Kind, found bool) {
	i := slices.IndexFunc(kinds, func(k *compile.Kind) bool { return k.Resource.Group == group && k.Name == name })
	if i < 0 {
		return nil, false
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

// parse reads the documents of a file. The first thing that is wrong is
// returned as a fault, and the content is then to be ignored.
func parse(data []byte) (content, error) {
	if len(data) == 0 {
		// An editor truncates before it writes. Remove a file to empty it.
		return content{}, fault{Err: errors.New("file is empty")}
	}
	var c content
	seen := map[string]int{}
	for d, err := range manifestyaml.Documents(data) {
		if err == nil {
			err = c.add(d, seen)
		}
		if err != nil {
			return content{}, err
		}
	}
	return c, nil
}

// add reads the object or list of d. seen has the lines of the objects so far.
func (c *content) add(d *manifestyaml.Document, seen map[string]int) error {
	head, err := d.Header()
	if err != nil {
		return err
	}
	if head.APIVersion == "" || head.Kind == "" {
		return fault{Line: d.Line(), Err: errors.New("apiVersion or kind is missing")}
	}
	version, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return fault{Line: d.LineOf("apiVersion"), Err: err}
	}
	if head.APIVersion == "v1" && head.Kind == "List" {
		return c.addItems(d, seen)
	}
	k, ours := kindOf(version.Group, head.Kind)
	switch {
	case !ours:
		c.ignored = append(c.ignored, head.APIVersion+" "+head.Kind)
		return nil
	case version != k.Resource.GroupVersion():
		return fault{Line: d.LineOf("apiVersion"), Err: fmt.Errorf("%s of version %s is not read, only %s", k.Name, head.APIVersion, k.Resource.Version)}
	}
	return c.addObject(k, d, seen)
}

// addItems reads the items of a List.
func (c *content) addItems(d *manifestyaml.Document, seen map[string]int) error {
	items, err := d.Items(manifestyaml.Header{})
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := c.add(item, seen); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) addObject(k *compile.Kind, d *manifestyaml.Document, seen map[string]int) error {
	var o object = k.New()
	if err := d.Decode(o); err != nil {
		return err
	}
	if path, err := complete(k, o); err != nil {
		return fault{Line: d.LineOf(path), Err: err}
	}
	m := manifest{kind: k, object: o, line: d.Line()}
	if line, twice := seen[m.key()]; twice {
		return fault{Line: d.Line(), Err: fmt.Errorf("%s is already at line %d", m.key(), line)}
	}
	seen[m.key()] = d.Line()
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
