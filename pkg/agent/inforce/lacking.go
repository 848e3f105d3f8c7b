package inforce

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

const (
	maxNamed  = 3   // nodes that a Lacking names
	maxReason = 200 // bytes of a node's reason
)

// Lacking are the nodes where something is not in force. It names the first three.
type Lacking struct {
	Nodes int
	named []string
}

// Add adds a node, with the reason.
func (l *Lacking) Add(node string, err error) {
	l.Nodes++
	if len(l.named) < maxNamed {
		text := err.Error()
		l.named = append(l.named, node+": "+printable.Text(text[:min(len(text), maxReason)]))
	}
}

// String returns the names with the reasons, and how many more nodes there are.
func (l *Lacking) String() string {
	text := strings.Join(l.named, "; ")
	if more := l.Nodes - len(l.named); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
