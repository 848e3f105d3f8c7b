package manifests

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// fault is an error at a line of a file.
type fault = manifestyaml.Fault

// kinds are in the order in which a Source serves changes. CIDRGroups come before the
// policies that refer to them, and policies before the objects that they select, so that a pod is never served before a policy in the same file that
// isolates it.
var kinds = slices.Concat([]*compile.Kind{compile.KindNamespace, compile.KindCIDRGroup}, compile.Kinds, []*compile.Kind{compile.KindNode, compile.KindPod})

// kindOf returns the kind with this group and name.
func kindOf(group, name string) (kind *compile.Kind, found bool) {
	i := slices.IndexFunc(kinds, func(k *compile.Kind) bool { return k.Resource.Group == group && k.Name == name })
	if i < 0 {
		return nil, false
	}
	return kinds[i], true
}

// similar returns the kind of a group that a name may be a misspelling of, "" if there is none.
func similar(group, name string) string {
	for _, k := range kinds {
		if k.Resource.Group == group && spelling.Distance(strings.ToLower(k.Name), strings.ToLower(name)) <= len(k.Name)/4 {
			return k.Name
		}
	}
	return ""
}

// manifest is an object and its position in its file.
type manifest struct {
	kind   *compile.Kind
	object object
	line   int // of the document or list item, from 1

	version string // as written in the file
}

// content is the parsed content of a file.
type content struct {
	manifests []manifest
	ignored   []string // skipped objects of other kinds
}

// parse reads the documents of a file. It returns the first error as a fault; the content
// must then be ignored.
func parse(data []byte) (content, error) {
	if len(data) == 0 {
		// Editors truncate a file before they write it. To remove its objects, remove the
		// file.
		return content{}, fault{Err: errors.New("file is empty")}
	}
	var c content
	seen := map[string]manifest{}
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

// add reads the object or list of d. seen holds the objects so far.
func (c *content) add(d *manifestyaml.Document, seen map[string]manifest) error {
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
		return c.addItems(d, manifestyaml.Header{}, seen)
	}
	if item, isList := strings.CutSuffix(head.Kind, "List"); isList {
		if _, ours := kindOf(version.Group, item); ours {
			return c.addItems(d, manifestyaml.Header{APIVersion: head.APIVersion, Kind: item}, seen)
		}
	}
	k, ours := kindOf(version.Group, head.Kind)
	switch {
	case !ours && similar(version.Group, head.Kind) != "":
		return fault{Line: d.LineOf("kind"), Err: fmt.Errorf("kind %q of %s: is %s meant?", head.Kind, head.APIVersion, similar(version.Group, head.Kind))}
	case !ours:
		c.ignored = append(c.ignored, head.APIVersion+" "+head.Kind)
		return nil
	case !k.Reads(version):
		return fault{Line: d.LineOf("apiVersion"), Err: fmt.Errorf("%s of version %s is not read, only of %s: write it as %s", k.Name, head.APIVersion, k.Versions(), k.Resource.GroupVersion())}
	}
	return c.addObject(k, version.Version, d, seen)
}

// addItems reads the items of a List, with this header if they have none.
func (c *content) addItems(d *manifestyaml.Document, header manifestyaml.Header, seen map[string]manifest) error {
	items, err := d.Items(header)
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

func (c *content) addObject(k *compile.Kind, version string, d *manifestyaml.Document, seen map[string]manifest) error {
	var o object = k.New()
	if err := d.Decode(o); err != nil {
		return err
	}
	if path, err := complete(k, o); err != nil {
		return fault{Line: d.LineOf(path), Err: err}
	}
	m := manifest{kind: k, object: o, line: d.Line(), version: version}
	if other, twice := seen[m.key()]; twice {
		return fault{Line: d.Line(), Err: m.duplicate(other, fmt.Sprintf("at line %d", other.line))}
	}
	seen[m.key()] = m
	c.manifests = append(c.manifests, m)
	return nil
}

// key identifies the object among all kinds.
func (m manifest) key() string {
	if ns := m.object.GetNamespace(); ns != "" {
		return m.kind.Name + " " + ns + "/" + m.object.GetName()
	}
	return m.kind.Name + " " + m.object.GetName()
}

// duplicate returns the error that m was already defined as other, at place, perhaps in
// another version.
func (m manifest) duplicate(other manifest, place string) error {
	if other.version != m.version {
		return fmt.Errorf("%s of version %s is already %s as %s, and is the same object: remove one of them", m.key(), m.version, place, other.version)
	}
	return fmt.Errorf("%s is already %s", m.key(), place)
}
