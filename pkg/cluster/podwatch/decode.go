package podwatch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Field numbers are from generated.proto in k8s.io/api/core/v1,
// k8s.io/apimachinery/pkg/apis/meta/v1 and k8s.io/apimachinery/pkg/runtime. Other fields are
// skipped.

// field is one field of a message: a number, or the bytes of a string or of a
// message.
type field struct {
	id     protowire.Number
	number uint64
	bytes  []byte
}

// next parses the first field of message.
func next(message []byte) (f field, rest []byte, err error) {
	id, typ, n := protowire.ConsumeTag(message)
	if n < 0 {
		return f, nil, malformed(n)
	}
	f.id, rest = id, message[n:]
	switch typ {
	case protowire.VarintType:
		f.number, n = protowire.ConsumeVarint(rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(rest)
	default:
		n = protowire.ConsumeFieldValue(id, typ, rest)
	}
	if n < 0 {
		return f, nil, malformed(n)
	}
	return f, rest[n:], nil
}

// malformed returns the error for a length that protowire could not parse. It does not wrap
// io.ErrUnexpectedEOF, even if protowire reports that.
func malformed(n int) error {
	return fmt.Errorf("malformed protobuf: %v", protowire.ParseError(n))
}

// each calls do for each field of message.
func each(message []byte, do func(field) error) error {
	for len(message) > 0 {
		f, rest, err := next(message)
		if err != nil {
			return err
		}
		if err := do(f); err != nil {
			return err
		}
		message = rest
	}
	return nil
}

// magic is the prefix of every object in the protobuf encoding; a runtime.Unknown follows.
var magic = []byte{'k', '8', 's', 0}

var errNoProtobuf = errors.New("the answer is not in the protobuf encoding of Kubernetes")

// unwrap returns the message of an encoded object.
func unwrap(object []byte) (message []byte, err error) {
	unknown, ok := bytes.CutPrefix(object, magic)
	if !ok {
		return nil, errNoProtobuf
	}
	err = each(unknown, func(f field) error {
		if f.id == 2 {
			message = f.bytes
		}
		return nil
	})
	return message, err
}

// decoder reads one pod after another. It belongs to one goroutine.
type decoder struct {
	shared *Shared
	// pod has the fields that compile.NewPod reads. Its slices are reused.
	pod     corev1.Pod
	entries [][]byte // one element per label
	labels  []policy.Label[[]byte]
}

func newDecoder(shared *Shared) *decoder { return &decoder{shared: shared} }

// decode reads a Pod.
func (d *decoder) decode(message []byte) (*Object, error) {
	d.reset()
	err := each(message, func(f field) error {
		switch f.id {
		case 1:
			return d.meta(f.bytes)
		case 2:
			return d.spec(f.bytes)
		case 3:
			return d.status(f.bytes)
		}
		return nil
	})
	var labels policy.Labels
	if err == nil {
		labels, err = d.sameLabels()
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", d.pod.Namespace, d.pod.Name, err)
	}
	meta := metav1.ObjectMeta{Namespace: d.pod.Namespace, Name: d.pod.Name, ResourceVersion: d.pod.ResourceVersion}
	pod := compile.NewPod(&d.pod)
	pod.Endpoint.Labels, pod.Endpoint.Ports = labels, d.shared.samePorts(pod.Endpoint.Ports)
	return &Object{meta, pod}, nil
}

// reset empties the pod and keeps the capacity of its slices.
func (d *decoder) reset() {
	containers, inits, ips := d.pod.Spec.Containers[:0], d.pod.Spec.InitContainers[:0], d.pod.Status.PodIPs[:0]
	d.pod = corev1.Pod{
		Spec:   corev1.PodSpec{Containers: containers, InitContainers: inits},
		Status: corev1.PodStatus{PodIPs: ips},
	}
	d.entries = d.entries[:0]
}

// meta reads an ObjectMeta.
func (d *decoder) meta(message []byte) error {
	return each(message, func(f field) error {
		var err error
		m := &d.pod.ObjectMeta
		switch f.id {
		case 1:
			m.Name = string(f.bytes)
		case 3:
			m.Namespace = d.shared.name(f.bytes)
		case 5:
			m.UID = types.UID(f.bytes)
		case 6:
			m.ResourceVersion = string(f.bytes)
		case 8:
			m.CreationTimestamp, err = timestamp(f.bytes)
		case 9:
			var t metav1.Time
			t, err = timestamp(f.bytes)
			m.DeletionTimestamp = &t
		case 11:
			d.entries = append(d.entries, f.bytes)
		}
		return err
	})
}

// timestamp reads a Time. An empty one is the zero time.
func timestamp(message []byte) (metav1.Time, error) {
	if len(message) == 0 {
		return metav1.Time{}, nil
	}
	var seconds, nanos int64
	err := each(message, func(f field) error {
		switch f.id {
		case 1:
			seconds = int64(f.number)
		case 2:
			nanos = int64(int32(f.number))
		}
		return nil
	})
	return metav1.Time{Time: time.Unix(seconds, nanos)}, err
}

// spec reads a PodSpec.
func (d *decoder) spec(message []byte) error {
	return each(message, func(f field) error {
		var err error
		s := &d.pod.Spec
		switch f.id {
		case 2:
			s.Containers, err = d.container(s.Containers, f.bytes)
		case 8:
			s.ServiceAccountName = d.shared.name(f.bytes)
		case 9:
			s.DeprecatedServiceAccount = d.shared.name(f.bytes)
		case 10:
			s.NodeName = d.shared.name(f.bytes)
		case 11:
			s.HostNetwork = f.number != 0
		case 20:
			s.InitContainers, err = d.container(s.InitContainers, f.bytes)
		}
		return err
	})
}

// container reads a Container and appends it to all.
func (d *decoder) container(all []corev1.Container, message []byte) ([]corev1.Container, error) {
	all, c := extend(all)
	*c = corev1.Container{Ports: c.Ports[:0]}
	return all, each(message, func(f field) error {
		var err error
		switch f.id {
		case 6:
			c.Ports, err = d.containerPort(c.Ports, f.bytes)
		case 24:
			policy := corev1.ContainerRestartPolicy(d.shared.name(f.bytes))
			c.RestartPolicy = &policy
		}
		return err
	})
}

// containerPort reads a ContainerPort and appends it to all.
func (d *decoder) containerPort(all []corev1.ContainerPort, message []byte) ([]corev1.ContainerPort, error) {
	all, p := extend(all)
	*p = corev1.ContainerPort{}
	return all, each(message, func(f field) error {
		switch f.id {
		case 1:
			p.Name = d.shared.name(f.bytes)
		case 3:
			p.ContainerPort = int32(f.number)
		case 4:
			p.Protocol = corev1.Protocol(d.shared.name(f.bytes))
		}
		return nil
	})
}

// status reads a PodStatus.
func (d *decoder) status(message []byte) error {
	return each(message, func(f field) error {
		s := &d.pod.Status
		switch f.id {
		case 1:
			s.Phase = corev1.PodPhase(d.shared.name(f.bytes))
		case 6:
			s.PodIP = string(f.bytes)
		case 12:
			all, ip := extend(s.PodIPs)
			s.PodIPs, *ip = all, corev1.PodIP{}
			return each(f.bytes, func(f field) error {
				if f.id == 1 {
					ip.IP = string(f.bytes)
				}
				return nil
			})
		}
		return nil
	})
}

// extend makes all one element longer and keeps the old content of that element, so that its
// slices are reused.
func extend[T any](all []T) ([]T, *T) {
	n := len(all)
	if n == cap(all) {
		all = append(all, *new(T))
	}
	all = all[:n+1]
	return all, &all[n]
}

// sameLabels returns the labels, shared with an earlier pod if they are equal.
func (d *decoder) sameLabels() (policy.Labels, error) {
	var hash uint64
	for _, entry := range d.entries {
		hash += maphash.Bytes(seed, entry)
	}
	d.labels = d.labels[:0]
	for _, entry := range d.entries {
		l, err := label(entry)
		if err != nil {
			return policy.Labels{}, err
		}
		d.labels = append(d.labels, l)
	}
	return d.shared.labels.get(hash, d.hasLabels, func() policy.Labels { return policy.PackLabels(d.labels) }), nil
}

// hasLabels reports whether known equals the labels.
func (d *decoder) hasLabels(known policy.Labels) bool {
	for _, l := range d.labels {
		if !known.Holds(l) {
			return false
		}
	}
	return known.Len() == len(d.labels)
}

// label reads one entry of a map of strings.
func label(entry []byte) (l policy.Label[[]byte], err error) {
	err = each(entry, func(f field) error {
		switch f.id {
		case 1:
			l.Key = f.bytes
		case 2:
			l.Value = f.bytes
		}
		return nil
	})
	return l, err
}
