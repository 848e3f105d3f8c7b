package nodecheck

import (
	"net"
	"os"
	"path/filepath"

	"github.com/google/nftables"
)

// Host is the node of this process: its network namespace, read without changing it.
type Host struct{}

// Interfaces implements Node.
func (Host) Interfaces() ([]string, error) {
	interfaces, err := net.Interfaces()
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	return names, err
}

// BridgePort implements Node. The kernel has a folder for each port.
func (Host) BridgePort(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", name, "brport"))
	return err == nil
}

// Sysctl implements Node.
func (Host) Sysctl(path string) (string, error) {
	value, err := os.ReadFile(filepath.Join("/proc/sys", path))
	return string(value), err
}

// Chains implements Node.
func (Host) Chains() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, table := range tables {
		names = append(names, table.Name)
	}
	chains, err := conn.ListChains()
	for _, chain := range chains {
		names = append(names, chain.Name)
	}
	return names, err
}
