package main

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// comparedAddresses are the addresses that are compared in addition to those of pods.
type comparedAddresses struct {
	addresses []string
	ranges    map[string]string // what an address outside stands for, by address
	services  map[string]string // the Service that an address is behind, by address
}

// comparedAddresses returns the addresses to compare. Policies never see the address of a Service: what
// is behind it is compared instead.
func (d *diffOptions) comparedAddresses(before, after *reachability.Cluster) (c comparedAddresses, err error) {
	c.services = map[string]string{}
	if len(d.addresses) > 0 {
		c.addresses, err = d.givenAddresses(after, c.services)
		return c, err
	}
	translated := reachability.NewTranslated(slices.Concat(d.servicesBefore.list, d.services.list), slices.Concat(d.servicesBefore.ranges, d.services.ranges))
	c.ranges = reachability.ExternalRanges(translated, before, after)
	c.addresses = append(reachability.NodeAddresses(before, after), reachability.ExternalAddresses(translated, before, after)...)
	for _, services := range []*services{&d.servicesBefore, &d.services} {
		for _, s := range services.list {
			for _, b := range services.backends.Behind(s, s.Spec.Ports) {
				if e, err := after.Endpoint(b.Address); err != nil || e.Kind != reachability.External && !slices.Contains(c.addresses, b.Address) {
					continue // a pod, or a node that is compared by its pods
				}
				c.addresses = append(c.addresses, b.Address)
				c.services[b.Address] = s.Namespace + "/" + s.Name
				delete(c.ranges, b.Address) // it is shown by itself
			}
		}
	}
	c.addresses = compacted(c.addresses)
	return c, nil
}

// givenAddresses returns the addresses of --address. For a Service, these are what is behind it;
// pods are compared anyway.
func (d *diffOptions) givenAddresses(after *reachability.Cluster, behind map[string]string) ([]string, error) {
	finder := d.sideFinder(after, nil)
	var all []string
	for _, name := range d.addresses {
		s := finder.serviceOf(name)
		switch {
		case s == nil && (namesService(name) || isAddress(name)):
			if _, err := finder.find(name); err != nil {
				return nil, fmt.Errorf("--address=%s: %w", name, err)
			}
			all = append(all, name)
		case s == nil:
			all = append(all, name)
		case len(s.Spec.Selector) == 0:
			side, err := finder.endpointsOf(reachability.Side{}, s, s.Spec.Ports)
			if err != nil {
				return nil, err
			}
			for _, m := range side.Members {
				all = append(all, m.Name)
				behind[m.Name] = s.Namespace + "/" + s.Name
			}
		}
	}
	return compacted(all), nil
}

// compacted returns texts without duplicates, in their order.
func compacted(texts []string) []string {
	var all []string
	for _, text := range texts {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}
