package cniresults

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

const (
	// maxAddrs is more than a pod ever has: one of each family.
	maxAddrs = 16
	// maxName is the length of the longest name of a pod. The other strings of a record
	// are shorter.
	maxName = 253
	// podInterface is the interface of a pod whose addresses are the pod's for Kubernetes:
	// containerd and CRI-O give it this name. Other interfaces, such as those of Multus,
	// belong to other networks.
	podInterface = "eth0"
	// maxLink is the length of the longest name of an interface (IFNAMSIZ without the zero byte).
	maxLink = 15
)

// record is the content of one file: the addresses of one interface of a sandbox.
type record struct {
	namespace, name, uid string
	container            string
	addrs                []netip.Addr
	links                []string // interfaces of the node, which lead to the sandbox
}

// errOther is the error for files about another interface, or about a container that belongs
// to no pod.
var errOther = errors.New("not the network of a pod")

// cached is the file that libcni writes for each added interface: its own fields around the
// result of the plugins.
type cached struct {
	ContainerID string      `json:"containerId"`
	IfName      string      `json:"ifName"`
	Args        [][2]string `json:"cniArgs"`
	Result      struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		// Results of version 0.2 and earlier have one address of each family.
		IP4, IP6 *struct {
			IP string `json:"ip"`
		}
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"` // empty if it is the node's
		} `json:"interfaces"`
	} `json:"result"`
}

// parse reads a file of libcni's cache. It returns errOther for files that are not about a
// pod's network.
func parse(content []byte) (record, error) {
	var c cached
	if err := json.Unmarshal(content, &c); err != nil {
		return record{}, err
	}
	r := record{
		namespace: c.arg("K8S_POD_NAMESPACE"),
		name:      c.arg("K8S_POD_NAME"),
		uid:       c.arg("K8S_POD_UID"),
		container: c.ContainerID,
	}
	if c.IfName != podInterface || r.namespace == "" || r.name == "" || r.uid == "" {
		return record{}, errOther
	}
	if n := max(len(r.namespace), len(r.name), len(r.uid), len(r.container)); n > maxName {
		return record{}, fmt.Errorf("a name of %d characters, more than %d", n, maxName)
	}
	var err, errLinks error
	r.addrs, err = c.addrs()
	r.links, errLinks = c.links()
	switch {
	case err != nil || errLinks != nil:
		return record{}, errors.Join(err, errLinks)
	case len(r.addrs) == 0:
		return record{}, errOther
	}
	return r, nil
}

// arg returns the first argument with this name, empty if there is none.
func (c *cached) arg(name string) string {
	for _, a := range c.Args {
		if a[0] == name {
			return a[1]
		}
	}
	return ""
}

// links returns the names of the interfaces of the node, sorted. Some plugins write the interface of the
// pod without a sandbox.
func (c *cached) links() ([]string, error) {
	var links []string
	for _, i := range c.Result.Interfaces {
		if i.Sandbox == "" && i.Name != c.IfName && i.Name != "" {
			links = append(links, i.Name)
		}
	}
	slices.Sort(links)
	links = slices.Compact(links)
	if len(links) > maxAddrs {
		return nil, fmt.Errorf("%d interfaces, more than %d", len(links), maxAddrs)
	}
	for _, name := range links {
		if len(name) > maxLink {
			return nil, fmt.Errorf("the name of an interface with %d characters, more than %d", len(name), maxLink)
		}
	}
	return links, nil
}

func (c *cached) addrs() ([]netip.Addr, error) {
	var texts []string
	for _, ip := range c.Result.IPs {
		texts = append(texts, ip.Address)
	}
	if ip := c.Result.IP4; ip != nil {
		texts = append(texts, ip.IP)
	}
	if ip := c.Result.IP6; ip != nil {
		texts = append(texts, ip.IP)
	}
	if len(texts) > maxAddrs {
		return nil, fmt.Errorf("%d addresses, more than %d", len(texts), maxAddrs)
	}
	var addrs []netip.Addr
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		if addr := prefix.Addr().Unmap(); addr.IsGlobalUnicast() && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}
