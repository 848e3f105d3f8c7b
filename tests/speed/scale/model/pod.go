package model

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Stage is the stage of a pod's life. Each has one event of the pod's object.
type Stage int

// The stages in order.
const (
	Created     Stage = iota // on no node
	Scheduled                // on a node, without an address
	Running                  // with an address
	Terminating              // or completed
	Deleted
)

// Pod is a pod at some stage.
type Pod struct {
	Namespace  int
	Node       int // -1 before it is scheduled
	Stage      Stage
	app        string
	generation int // of the application's template
	number     int
	host       int // in the node's range
}

// Name returns the pod's name.
func (p Pod) Name() string { return fmt.Sprintf("%s-%s-%06d", p.app, p.hash(), p.number) }

// hash distinguishes the templates of an application.
func (p Pod) hash() string { return fmt.Sprintf("%08x", p.generation) }

// Labels returns the pod's labels: those that policies name, and some others.
func (p Pod) Labels() labels.Set {
	return labels.Set{
		"app": p.app, "k8s-app": p.app, "tier": "front", "release": "r0",
		"app.kubernetes.io/managed-by": "deploy", "pod-template-hash": p.hash(),
	}
}

// Addr returns the pod's address, which it has from Running on.
func (p Pod) Addr() netip.Addr {
	a := Range(p.Node).Addr().As4()
	a[3] = byte(firstHost + p.host)
	return netip.AddrFrom4(a)
}

// NodeName returns the name of node i.
func NodeName(i int) string { return "node-" + strconv.Itoa(i) }

// Object returns the pod as an API object of 3.6 KB.
func (c *Cluster) Object(p Pod) *corev1.Pod {
	var node string
	if p.Node >= 0 {
		node = NodeName(p.Node)
	}
	o := NewPod(c.NamespaceName(p.Namespace), p.Name(), p.app+"-"+p.hash(), node)
	o.Labels = p.Labels()
	switch p.Stage {
	case Created, Scheduled:
		o.Status.Phase, o.Status.HostIP = corev1.PodPending, ""
		if p.Stage == Created {
			o.Status.Conditions = nil
		}
		return o
	case Terminating:
		now, grace := metav1.NewTime(created.Add(1)), int64(30)
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = &now, &grace
	}
	SetAddrs(o, p.Addr())
	return o
}
