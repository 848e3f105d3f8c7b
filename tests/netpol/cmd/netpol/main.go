// The netpol command plays the scenarios on a live cluster: it creates pods and policies,
// tries every connection, and prints the tables that differ from what is expected.
//
//	netpol -kubeconfig ~/.kube/config
//	netpol -run 'ipBlock|except' -families IPv4,IPv6
package main

import "sigs.k8s.io/kube-network-policies/tests/netpol/suite"

func main() { suite.Command{}.Main() }
