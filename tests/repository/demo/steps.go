package main

import (
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// step is one change of the policies and its expected effect.
type step struct {
	title string
	// apply and remove name files of manifests/policies.
	apply, remove []string
	checks        []check
	table         bool // its tables are shown without -v, too
	// audited is a policy that would deny some of the packets. How many is shown.
	audited string
	// awaited is set if the agents are asked when the one change of a NetworkPolicy is in force.
	awaited bool
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
		table:  true,
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
		title: "An administrator shuts namespace z out of y: no policy of y can let it in.",
		apply: []string{"shut-out"},
		checks: []check{
			{notYBut(notFromZ(toAByLabel)), []lab.Traffic{tcp(80), udp(80)}},
			{notYBut(notFromZ(intoY)), []lab.Traffic{tcp(8000)}},
		},
	},
	{
		title:  "Default deny removed: y may send again, and still accepts only what the others leave.",
		remove: []string{"default-deny"},
		checks: []check{
			{notIntoYBut(notFromZ(toAByLabel)), []lab.Traffic{tcp(80), udp(80)}},
		},
	},
	{
		title:  "The last of them removed: all is open again.",
		remove: []string{"allow-by-label", "port-range", "shut-out"},
		checks: []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:  "A baseline of the administrator: x accepts its own pods only, unless x says otherwise.",
		apply:  []string{"baseline"},
		checks: []check{{withinX, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:   "x says otherwise for its pod a, which accepts y. It is isolated now, and the baseline is not asked.",
		apply:   []string{"open-to-y"},
		checks:  []check{{withinXButA, []lab.Traffic{tcp(80), udp(80)}}},
		awaited: true,
	},
	{
		title:  "Both removed: all is open again.",
		remove: []string{"baseline", "open-to-y"},
		checks: []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:   "Before enforcing: a default deny in y that is audited. All is open, and what it would deny is counted.",
		apply:   []string{"audited-deny"},
		checks:  []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
		audited: "audited-deny",
	},
	{
		title:  "The same, enforced.",
		apply:  []string{"default-deny"},
		remove: []string{"audited-deny"},
		checks: []check{{notY, []lab.Traffic{tcp(80), udp(80)}}},
	},
	{
		title:  "Removed: all is open again.",
		remove: []string{"default-deny"},
		checks: []check{{everything, []lab.Traffic{tcp(80), udp(80)}}},
	},
}

func everything(string, string) bool { return true }

// notY is the table of the default deny: whatever has an end in y is blocked.
func notY(from, to string) bool { return from == to || !in("y", from) && !in("y", to) }

// notYBut adds what a policy opens to notY. It opens ingress only: the pods of y
// may send to no pod.
func notYBut(opened func(from, to string) bool) func(from, to string) bool {
	return func(from, to string) bool {
		return notY(from, to) || !in("y", from) && opened(from, to)
	}
}

// notIntoYBut is what is left of a port other than 8000 to 8010 without the
// default deny: the allow policies isolate y for ingress too.
func notIntoYBut(opened func(from, to string) bool) func(from, to string) bool {
	return func(from, to string) bool {
		return from == to || !in("y", to) || opened(from, to)
	}
}

// notFromZ is what the administrator leaves of what policies of y open.
func notFromZ(opened func(from, to string) bool) func(from, to string) bool {
	return func(from, to string) bool {
		return !in("z", from) && opened(from, to)
	}
}

// withinX is the table of the baseline.
func withinX(from, to string) bool { return !in("x", to) || in("x", from) }

// withinXButA is what open-to-y makes of it: no pod but itself and those of y
// reach x/a.
func withinXButA(from, to string) bool {
	if to == "x/a" {
		return from == to || in("y", from)
	}
	return withinX(from, to)
}

// toAByLabel is what allow-by-label accepts.
func toAByLabel(from, to string) bool { return to == "y/a" && (from == "x/b" || in("z", from)) }

// intoY is what port-range accepts on its ports.
func intoY(_, to string) bool { return in("y", to) }

func in(namespace, pod string) bool { return strings.HasPrefix(pod, namespace+"/") }
