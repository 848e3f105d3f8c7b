package agent

import (
	"errors"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// PodAddressSource selects where addresses of the node's new pods are learned: one of the
// constants below, or the folder of libcni's results. If that folder cannot be read, the
// agent is not ready.
type PodAddressSource string

const (
	// PodAddressAuto reads libcni's usual folder if it has results, and the status of pods.
	PodAddressAuto PodAddressSource = "auto"
	// PodAddressStatus reads only the status of pods.
	PodAddressStatus PodAddressSource = "status"
)

// MarshalText implements encoding.TextMarshaler.
func (s PodAddressSource) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText accepts auto, status, or an absolute path, so that a PodAddressSource can be
// a flag.
func (s *PodAddressSource) UnmarshalText(text []byte) error {
	*s = PodAddressSource(text)
	switch {
	case *s == "cni-cache":
		return errors.New("was replaced: write the folder, " + cniresults.DefaultDir)
	case !s.isFolder() && *s != PodAddressAuto && *s != PodAddressStatus:
		return errors.New("must be auto, status or an absolute path")
	}
	return nil
}

func (s PodAddressSource) isFolder() bool { return filepath.IsAbs(string(s)) }

// newCNICache returns the cache of CNI results, nil if addresses come from the status of pods
// only. It passes sandboxes to set.
func newCNICache(cfg Config, set func([]clusterstate.Sandbox), reg prometheus.Registerer) (*cniresults.Cache, error) {
	if cfg.PodAddressSource == PodAddressStatus {
		return nil, nil
	}
	dir := cniresults.DefaultDir
	if cfg.PodAddressSource.isFolder() {
		dir = string(cfg.PodAddressSource)
	}
	return cniresults.New(cniresults.Config{
		Dir:        dir,
		Changed:    func(found []cniresults.Sandbox) { set(sandboxes(found)) },
		Registerer: reg,
	})
}

func sandboxes(found []cniresults.Sandbox) []clusterstate.Sandbox {
	out := make([]clusterstate.Sandbox, len(found))
	for i, s := range found {
		out[i] = clusterstate.Sandbox{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Addrs: s.Addrs}
	}
	return out
}
