package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// State is a node's view of its cluster: the objects as package clusterwatch strips them,
// before compilation, so that current flags and the current compiler apply to them.
type State struct {
	Header
	Namespaces []*corev1.Namespace
	Nodes      []*corev1.Node
	CIDRGroups []*proposed.CIDRGroup
	Pods       []*compile.Pod
	Policies   []compile.Object
}

// Header identifies the origin of a State.
type Header struct {
	// Node is the name of the node that saved it.
	Node string `json:"node"`
	// Boot is the kernel's random ID of the time since it booted.
	Boot string `json:"boot"`
	// Kinds are the names of the kinds of policy that were enabled.
	Kinds []string `json:"kinds"`
	// Known is when the state was last known to be current.
	Known time.Time `json:"known"`
	// Versions are the newest resource versions that were seen, by kind.
	Versions map[string]string `json:"versions,omitempty"`
}

// entry is one object.
type entry struct {
	Kind   string          `json:"k"`
	Object json.RawMessage `json:"o"`
}

// pod is a compile.Pod without the fields that a Cluster sets.
type pod struct {
	Namespace   string             `json:"s"`
	Name        string             `json:"n"`
	ID          uint32             `json:"i"`
	UID         types.UID          `json:"u,omitempty"`
	Node        string             `json:"d,omitempty"`
	Addrs       []netip.Addr       `json:"a,omitempty"`
	Created     int64              `json:"c,omitempty"`
	Terminating bool               `json:"t,omitempty"`
	OwnNetwork  bool               `json:"w,omitempty"`
	Account     string             `json:"o,omitempty"`
	Labels      map[string]string  `json:"l,omitempty"`
	Ports       []policy.NamedPort `json:"p,omitempty"`
}

// encode writes s as a sequence of JSON values: the header, and the objects.
func encode(w io.Writer, s *State) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(s.Header); err != nil {
		return err
	}
	put := func(kind *compile.Kind, o any) error {
		object, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return e.Encode(entry{kind.Name, object})
	}
	var errs []error
	for _, o := range s.Namespaces {
		errs = append(errs, put(compile.KindNamespace, o))
	}
	for _, o := range s.Nodes {
		errs = append(errs, put(compile.KindNode, o))
	}
	for _, o := range s.CIDRGroups {
		errs = append(errs, put(compile.KindCIDRGroup, o))
	}
	for _, p := range s.Pods {
		errs = append(errs, put(compile.KindPod, pod{
			Namespace: p.Endpoint.Namespace, Name: p.Endpoint.Name, ID: p.Endpoint.ID, UID: p.UID, Node: p.Node, Addrs: p.Addrs,
			Created: p.Created, Terminating: p.Terminating, OwnNetwork: p.OwnNetwork,
			Account: p.Endpoint.Account, Labels: p.Endpoint.Labels.Set(), Ports: p.Endpoint.Ports,
		}))
	}
	for _, o := range s.Policies {
		errs = append(errs, put(compile.KindOf(o), o))
	}
	return errors.Join(errs...)
}

// decode reads the output of encode. It calls share with each pod.
func decode(r io.Reader, share func(*compile.Pod)) (*State, error) {
	d := json.NewDecoder(r)
	s := &State{}
	if err := d.Decode(&s.Header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	for {
		var e entry
		if err := d.Decode(&e); err == io.EOF {
			return s, nil
		} else if err != nil {
			return nil, err
		}
		if err := s.add(e, share); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Kind, err)
		}
	}
}

func (s *State) add(e entry, share func(*compile.Pod)) error {
	switch e.Kind {
	case compile.KindNamespace.Name:
		return read(e, compile.KindNamespace, &s.Namespaces, new(corev1.Namespace))
	case compile.KindNode.Name:
		return read(e, compile.KindNode, &s.Nodes, new(corev1.Node))
	case compile.KindCIDRGroup.Name:
		return read(e, compile.KindCIDRGroup, &s.CIDRGroups, new(proposed.CIDRGroup))
	case compile.KindPod.Name:
		var p pod
		if err := json.Unmarshal(e.Object, &p); err != nil {
			return err
		}
		pod, err := p.compiled()
		if err != nil {
			return err
		}
		share(pod)
		s.Pods = append(s.Pods, pod)
		return nil
	}
	kind := compile.KindNamed(e.Kind)
	if kind == nil {
		return errors.New("unknown kind")
	}
	return read(e, kind, &s.Policies, kind.New())
}

// read appends the object of e, which has this kind, to all.
func read[O compile.Object](e entry, kind *compile.Kind, all *[]O, o O) error {
	if err := json.Unmarshal(e.Object, o); err != nil {
		return err
	}
	if o.GetName() == "" || (o.GetNamespace() != "") != kind.Namespaced {
		return fmt.Errorf("no name of an object: %q/%q", o.GetNamespace(), o.GetName())
	}
	*all = append(*all, o)
	return nil
}

func (p *pod) compiled() (*compile.Pod, error) {
	for _, a := range p.Addrs {
		if !a.IsValid() || a.Zone() != "" || a != a.Unmap() {
			return nil, fmt.Errorf("pod %s/%s: %v is no address", p.Namespace, p.Name, a)
		}
	}
	if p.Namespace == "" || p.Name == "" {
		return nil, fmt.Errorf("no name of a pod: %q/%q", p.Namespace, p.Name)
	}
	if p.ID == 0 {
		return nil, fmt.Errorf("pod %s/%s has no ID", p.Namespace, p.Name)
	}
	return &compile.Pod{
		Endpoint: policy.Endpoint{Namespace: p.Namespace, Name: p.Name, ID: p.ID, Account: p.Account, Labels: policy.NewLabels(p.Labels), Ports: policy.SortPorts(p.Ports)},
		UID:      p.UID, Node: p.Node, Addrs: p.Addrs, Created: p.Created, Terminating: p.Terminating, OwnNetwork: p.OwnNetwork,
	}, nil
}
