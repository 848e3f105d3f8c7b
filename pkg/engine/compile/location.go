package compile

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// location is the part of a policy that is being compiled and the path of its field.
type location struct {
	place policy.Place
	path  *field.Path
}

var (
	specPath     = location{path: field.NewPath("spec")}
	metadataName = location{path: field.NewPath("metadata", "name")}
)

// ruleAt returns the location of a rule in the list of direction d.
func ruleAt(d policy.Direction, index int) location {
	return location{policy.Place{Part: policy.RulePart, Direction: d, Rule: index}, specPath.path.Child(d.String()).Index(index)}
}

// peers returns the location of the list of peers of the rule at l.
func (l location) peers() location {
	return l.list(policy.PeersPart, PeersField(l.place.Direction))
}

// ports returns the location of the list of ports of the rule at l. field is the kind's name for
// it.
func (l location) ports(field string) location { return l.list(policy.PortsPart, field) }

func (l location) list(part policy.Part, name string) location {
	l.place.Part, l.place.Item = part, policy.AllItems
	return l.child(name)
}

// item returns the location of an item of the list at l.
func (l location) item(index int) location {
	l.place.Item = index
	return l.index(index)
}

// child returns the location of a field of the object at l.
func (l location) child(name string) location { return location{l.place, l.path.Child(name)} }

// index returns the location of an element of the field at l.
func (l location) index(index int) location { return location{l.place, l.path.Index(index)} }
