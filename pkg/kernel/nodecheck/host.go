package nodecheck

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/google/nftables"
)

// Host is the node of this process. It reads the network namespace and changes nothing.
type Host struct {
	// Table is the name of the agent's table in the family inet, and UntrackedCounter that of
	// its counter of untracked packets.
	Table, UntrackedCounter string
}

// Interfaces implements Node.
func (Host) Interfaces() ([]string, error) {
	interfaces, err := net.Interfaces()
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	return names, err
}

// BridgePort implements Node. The folder brport exists for bridge ports only.
func (Host) BridgePort(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", name, "brport"))
	return err == nil
}

// Sysctl implements Node.
func (Host) Sysctl(path string) (string, error) {
	value, err := os.ReadFile(filepath.Join("/proc/sys", path))
	return string(value), err
}

// Counter returns the packets of a counter in a table of the family inet.
func Counter(table, name string) (packets uint64, err error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, err
	}
	object, err := conn.GetObject(&nftables.CounterObj{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: table}, Name: name})
	if err != nil {
		return 0, fmt.Errorf("read counter %s of table %s: %w", name, table, err)
	}
	counter, ok := object.(*nftables.CounterObj)
	if !ok {
		return 0, fmt.Errorf("read counter %s of table %s: it is not a counter", name, table)
	}
	return counter.Packets, nil
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

// Flowtables implements Node.
func (Host) Flowtables() ([]Flowtable, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	var found []Flowtable
	for _, table := range tables {
		flowtables, err := conn.ListFlowtables(table)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", table.Name, err)
		}
		for _, f := range flowtables {
			found = append(found, Flowtable{
				Table: table.Name, Name: f.Name, Devices: f.Devices, Hardware: f.Flags&nftables.FlowtableFlagsHWOffload != 0,
			})
		}
	}
	return found, nil
}
