// Package inforce is what an agent answers to who asks up to which changes of the cluster it enforces
// policies.
package inforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// Path is the path where agents serve an Answer.
const Path = "/in-force"

// Answer is what one agent enforces.
type Answer struct {
	Node string `json:"node"`
	// Problem is why nothing is known to be in force, such as a table that another process has
	// changed. It is empty if there is no reason.
	Problem string `json:"problem,omitempty"`
	Kinds   []Kind `json:"kinds"`
	// Uncertain are the policies that select pods which the node does not know by address.
	Uncertain []Uncertain `json:"uncertain,omitempty"`
}

// Uncertain is a policy whose rules select pods of which an address may be another pod's or node's: packets
// from and to it pass only if they are allowed for each. Without a kind it is every policy.
type Uncertain struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Pods      int    `json:"pods"`
	Example   string `json:"example"` // one of the pods, "namespace/name"
}

// Kind is what is in force of one kind of object.
type Kind struct {
	Kind string `json:"kind"`
	// Version is the resource version up to which all changes decide packets and connections. It
	// is empty before the kind has been listed.
	Version string `json:"version,omitempty"`
	// Seconds is how long ago Version came into force.
	Seconds float64 `json:"seconds"`
	// Seen is the newest version that the agent has received.
	Seen string `json:"seen,omitempty"`
	// Behind is why newer versions may not have been received, empty while the kind is watched.
	Behind string `json:"behind,omitempty"`
}

// Check returns nil if a change with a resource version of a kind is in force on the node, or the
// reason why that is not certain. While the kind is not watched, it never is: the server may have been
// restored from a backup meanwhile, after which versions are used again.
func (a *Answer) Check(kind, version string) error {
	if a.Problem != "" {
		return errors.New(a.Problem)
	}
	for i := range a.Kinds {
		if a.Kinds[i].Kind == kind {
			return a.Kinds[i].check(version)
		}
	}
	return fmt.Errorf("the agent does not enforce %s", kind)
}

// Holds is Check for a change that has been in force on the node before: it still is while the kind is
// not watched.
func (a *Answer) Holds(kind, version string) error {
	b := *a
	b.Kinds = slices.Clone(a.Kinds)
	for i := range b.Kinds {
		b.Kinds[i].Behind = ""
	}
	return b.Check(kind, version)
}

// InForce returns the versions that Check accepts, by kind, or that Holds does.
func (a *Answer) InForce(holds bool) map[string]string {
	versions := map[string]string{}
	for _, k := range a.Kinds {
		_, known := versions[k.Kind]
		if a.Problem == "" && !known && (holds || k.Behind == "") {
			versions[k.Kind] = k.Version
		}
	}
	return versions
}

func (k *Kind) check(version string) error {
	switch {
	case k.Behind != "":
		return errors.New(k.Behind)
	case k.Version == "":
		return fmt.Errorf("%s: none is in force", k.Kind)
	case Reaches(k.Version, version):
		return nil
	case Reaches(k.Seen, version):
		return fmt.Errorf("%s: version %s is received, and version %s is in force", k.Kind, version, k.Version)
	}
	return fmt.Errorf("%s: version %s is not received, only version %s", k.Kind, version, k.Seen)
}

// Reaches reports whether a version is at least want. A version that is not a number is never reached,
// and reaches none.
func Reaches(have, want string) bool {
	order, err := resourceversion.CompareResourceVersion(have, want)
	return err == nil && order >= 0
}

// Decode reads an answer. It refuses one that exceeds the bounds of an agent, which may lie. Texts are
// printable.
func Decode(r io.Reader) (*Answer, error) {
	limited := &io.LimitedReader{R: r, N: bounds.InForceBytes}
	var a Answer
	err := json.NewDecoder(limited).Decode(&a)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("the answer is longer than %d bytes", bounds.InForceBytes)
	case err != nil:
		return nil, fmt.Errorf("the answer is not readable: %w", err)
	case a.Node == "":
		return nil, errors.New("the answer has no node")
	case len(a.Kinds) > bounds.InForceKinds:
		return nil, fmt.Errorf("the answer has %d kinds, more than %d", len(a.Kinds), bounds.InForceKinds)
	}
	if len(a.Uncertain) > bounds.InForceUncertain {
		return nil, fmt.Errorf("the answer has %d policies with uncertain pods, more than %d", len(a.Uncertain), bounds.InForceUncertain)
	}
	a.MakePrintable()
	return &a, nil
}

// MakePrintable makes the texts of an answer printable, and bounds their length.
func (a *Answer) MakePrintable() {
	a.Problem = text(a.Problem)
	for i := range a.Kinds {
		k := &a.Kinds[i]
		k.Behind, k.Seen, k.Version = text(k.Behind), text(k.Seen), text(k.Version)
	}
	for i := range a.Uncertain {
		u := &a.Uncertain[i]
		u.Example = text(u.Example)
	}
}

// text returns s in one printable line of bounded length.
func text(s string) string { return printable.Text(s[:min(len(s), bounds.InForceText)]) }
