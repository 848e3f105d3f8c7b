package agent

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/cnicache"
)

// PodAddressSource is where the addresses of new pods of the node are learned.
type PodAddressSource uint8

const (
	// PodAddressAuto is the CNI cache where it has pods, and their status.
	PodAddressAuto PodAddressSource = iota
	// PodAddressCNICache is the same. Without the folder the agent is not ready.
	PodAddressCNICache
	// PodAddressStatus is the status of pods alone.
	PodAddressStatus
)

var podAddressNames = []string{PodAddressAuto: "auto", PodAddressCNICache: "cni-cache", PodAddressStatus: "status"}

// String returns the name of s in flags.
func (s PodAddressSource) String() string {
	if int(s) < len(podAddressNames) {
		return podAddressNames[s]
	}
	return fmt.Sprintf("PodAddressSource(%d)", uint8(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s PodAddressSource) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses auto, cni-cache or status, so that a PodAddressSource can be a
// flag.
func (s *PodAddressSource) UnmarshalText(text []byte) error {
	i := slices.Index(podAddressNames, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of auto, cni-cache, status", text)
	}
	*s = PodAddressSource(i)
	return nil
}

// newCNICache returns the source of addresses of new pods, nil if it is their status
// alone. It hands sandboxes to set.
func newCNICache(cfg Config, set func([]clusterstate.Sandbox), reg prometheus.Registerer) (*cnicache.Cache, error) {
	if cfg.PodAddressSource == PodAddressStatus {
		return nil, nil
	}
	return cnicache.New(cnicache.Config{
		Dir:        cfg.CNICacheDir,
		Changed:    func(found []cnicache.Sandbox) { set(sandboxes(found)) },
		Registerer: reg,
	})
}

func sandboxes(found []cnicache.Sandbox) []clusterstate.Sandbox {
	out := make([]clusterstate.Sandbox, len(found))
	for i, s := range found {
		out[i] = clusterstate.Sandbox{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Addrs: s.Addrs}
	}
	return out
}
