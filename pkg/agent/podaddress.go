package agent

import (
	"errors"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
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
// only.
func newCNICache(cfg Config, changed func([]cniresults.Sandbox), reg prometheus.Registerer) (*cniresults.Cache, error) {
	if cfg.PodAddressSource == PodAddressStatus {
		return nil, nil
	}
	dir := cniresults.DefaultDir
	if cfg.PodAddressSource.isFolder() {
		dir = string(cfg.PodAddressSource)
	}
	return cniresults.New(cniresults.Config{
		Dir:        dir,
		Changed:    changed,
		Registerer: reg,
	})
}
