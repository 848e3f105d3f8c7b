package main

import (
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// step is one change of the policies and what must then be seen.
type step struct {
	title string
	// apply and remove name files of manifests/policies.
	apply, remove []string
	checks        []check
}

// check is an expectation, and the traffic that must meet it.
type check struct {
	want    func(from, to string) bool
	traffic []lab.Traffic
}

// ports are those that every pod answers on.
var ports = []uint16{80, 8000, 8010, 8011}

func tcp(port uint16) lab.Traffic { return lab.Traffic{Proto: lab.TCP, Port: port} }
func udp(port uint16) lab.Traffic { return lab.Traffic{Proto: lab.UDP, Port: port} }

// steps is what the demo shows. The expectations are written by hand from the
// policies' text, not computed.
var steps = []step{
	{
		title:  "No policy: every pod reaches every other.",
		checks: []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:  "Default deny in namespace y: nothing in, nothing out. A pod still reaches itself.",
		apply:  []string{"default-deny"},
		checks: []check{{notY, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:  "Allow by label and namespace: y/a accepts pod b of x, and all of z.",
		apply:  []string{"allow-by-label"},
		checks: []check{{notYBut(toAByLabel), []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title: "A port range: y accepts TCP 8000 to 8010 from anyone, and nothing else is opened.",
		apply: []string{"port-range"},
		checks: []check{
			{notYBut(intoY), []lab.Traffic{tcp(8000), tcp(8010)}},
			{notYBut(toAByLabel), []lab.Traffic{tcp(8011), udp(8000)}},
		},
	},
	{
		title:  "Default deny removed: y may send again, and still accepts only what the other two allow.",
		remove: []string{"default-deny"},
		checks: []check{
			{notIntoYButByLabel, []lab.Traffic{tcp(80), udp(80)}},
		},
	},
	{
		title:  "The last policies removed: all is open again.",
		remove: []string{"allow-by-label", "port-range"},
		checks: []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
	},
}

func everything(string, string) bool { return true }

// notY is the table of the default deny: whatever has an end in y is blocked.
func notY(from, to string) bool { return from == to || !in("y", from) && !in("y", to) }

// notYBut adds what a policy opens to notY. It opens ingress only: the pods of y
// may send to nobody.
func notYBut(opened func(from, to string) bool) func(from, to string) bool {
	return func(from, to string) bool {
		return notY(from, to) || !in("y", from) && opened(from, to)
	}
}

// notIntoYButByLabel is what is left of a port other than 8000 to 8010 without the
// default deny: the allow policies isolate y for ingress too.
func notIntoYButByLabel(from, to string) bool {
	return from == to || !in("y", to) || toAByLabel(from, to)
}

// toAByLabel is what allow-by-label accepts.
func toAByLabel(from, to string) bool { return to == "y/a" && (from == "x/b" || in("z", from)) }

// intoY is what port-range accepts on its ports.
func intoY(_, to string) bool { return in("y", to) }

func in(namespace, pod string) bool { return strings.HasPrefix(pod, namespace+"/") }
