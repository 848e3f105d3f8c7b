package nodecheck

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
)

// Host is the node of this process. It reads the network namespace and changes nothing.
type Host struct{}

// State implements Node.
func (Host) State() (s State) {
	for _, err := range []error{s.readLinks(), s.readChains(), s.readFlowtables(), s.readHelpers(), s.readForwards()} {
		if err != nil {
			s.add(Unknown, err.Error())
		}
	}
	return s
}

// readLinks also finds the programs of pods' interfaces. Those attached by tcx or netkit cannot be
// listed with the agent's capabilities.
func (s *State) readLinks() error {
	all, err := links.Interfaces()
	if err != nil {
		return err
	}
	filtered, err := filtered()
	bridged := false
	for index, link := range all {
		s.addInterface(link.Name)
		bridged = bridged || all[link.Master] != nil && all[link.Master].Kind == "bridge"
		if link.Kind != "veth" {
			continue
		}
		if link.XDP {
			s.add(DataPlane, "XDP program at "+link.Name)
		}
		if !filtered[index] {
			continue
		}
		bpf, failed := hasBPF(index)
		err = errors.Join(err, failed)
		if bpf {
			s.add(DataPlane, "eBPF program of traffic control at "+link.Name)
		}
	}
	return errors.Join(err, s.readSysctls(bridged))
}

func (s *State) readSysctls(bridged bool) error {
	values := map[string]string{}
	for _, name := range []string{bridgeIPv4, bridgeIPv6, helpersByPort} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
		if err == nil {
			values[name] = strings.TrimSpace(string(value))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.addSysctls(values, bridged)
	return nil
}
