package compile

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// location is the part of a policy that is compiled, and the path of the field
// there.
type location struct {
	place policy.Place
	path  *field.Path
}

var (
	specPath     = location{path: field.NewPath("spec")}
	metadataName = location{path: field.NewPath("metadata", "name")}
)

// ruleAt is the rule at an index of the list of direction d.
func ruleAt(d policy.Direction, index int) location {
	return location{policy.Place{Part: policy.RulePart, Direction: d, Rule: index}, specPath.path.Child(d.String()).Index(index)}
}

// peers is the list of peers of the rule at l.
func (l location) peers() location {
	return l.list(policy.PeersPart, PeersField(l.place.Direction))
}

// ports is the list of ports of the rule at l, by the kind's name for it.
func (l location) ports(field string) location { return l.list(policy.PortsPart, field) }

func (l location) list(part policy.Part, name string) location {
	l.place.Part, l.place.Item = part, policy.AllItems
	return l.child(name)
}

// item is an item of the list at l.
func (l location) item(index int) location {
	l.place.Item = index
	return l.index(index)
}

// child is a field of what is at l.
func (l location) child(name string) location { return location{l.place, l.path.Child(name)} }

// index is an element of the field at l.
func (l location) index(index int) location { return location{l.place, l.path.Index(index)} }
