package main

import (
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// Names of measurements and of ways to decide.
const (
	verdict      = "Verdict/policies=1/pods=1000"
	verdictLarge = "Verdict/policies=10000/pods=100000"
	firstPacket  = "FirstPacket/policies=10000/pods=100000"

	accept    = "/accept"
	floor     = "/floor"
	callback  = "/callback"
	agent     = "/agent/policies=11"
	asking    = "/asking/policies=11"
	agent1    = "/agent/policies=1"
	agent1001 = "/agent/policies=1001"

	memory       = "Memory/policies=10000/pods=100000"
	podChange    = "PodChange/policies=10000/pods=100000"
	podChangeFew = "PodChange/policies=10000/pods=1000"
	policyChange = "PolicyChange/policies=10000/pods=100000"
	calmPod      = "CalmPodChange/policies=10000/pods=100000"
	revocation   = "Revocation/policies=10000/pods=100000"
	calmPolicy   = "CalmPolicyChange/policies=10000/pods=100000"
	busyPod      = "BusyPodChange/policies=10000/pods=100000"
	busyPolicy   = "BusyPolicyChange/policies=10000/pods=100000"
	start        = "Start/policies=10000/pods=100000"
)

// sameWork is the ratio up to which amounts of work count as the same. A hundred thousand
// pods miss the processor's caches, a thousand do not.
const sameWork = 2

// reallySent is the minimum fraction of a row's rate that must have been sent for the row
// to be meaningful.
const reallySent = 0.95

const (
	micro = 1e-3 // nanoseconds in microseconds
	milli = 1e-6 // nanoseconds in milliseconds
	sec   = 1e-9 // nanoseconds in seconds
	kilo  = 1e-3 // packets in thousands
)

// goals are the rows.
var goals = []goal{
	{
		"one verdict (parse and evaluate), 1 policy on the pod, 1,000 pods", "≤ 500 ns, 0 allocations",
		[]check{
			{samplesOf(verdict, "ns/op"), "%.0f", " ns", 1, atMost(500)},
			{samplesOf(verdict, "allocs/op"), "%.0f", " allocations", 1, never},
		},
	},
	{
		"the same at 10,000 policies that all select the pod, 100,000 pods", "≤ 3 times the figure at 1 policy, 0 allocations; the first packet of a new peer ≤ 1 ms",
		[]check{
			{ratio(verdictLarge, verdict, "ns/op"), "%.2f", " times", 1, atMost(3)},
			{samplesOf(verdictLarge, "allocs/op"), "%.0f", " allocations", 1, never},
			{samplesOf(firstPacket, "ns/op"), "%.2f", " ms for the first packet", milli, atMost(1e6)},
		},
	},
	{
		"a verdict with 100,000 peers by turns, each with its own labels, 10,000 policies", "≤ 2 times the figure with one peer",
		[]check{
			{ratio("Peers/policies=10000/peers=100000", "Peers/policies=10000/peers=1", "ns/op"), "%.1f", " times", 1, atMost(2)},
			{ratio("Peers/policies=10000/peers=2048", "Peers/policies=10000/peers=1", "ns/op"), "%.1f", " times with 2,048", 1, nil},
		},
	},
	{
		"the same where peers share labels by the thirty", "≤ 2 times the figure with one peer",
		[]check{
			{ratio("SharedPeers/policies=10000/peers=100000", "SharedPeers/policies=10000/peers=1", "ns/op"), "%.1f", " times", 1, atMost(2)},
			{ratio("SharedPeers/policies=10000/peers=2048", "SharedPeers/policies=10000/peers=1", "ns/op"), "%.1f", " times with 2,048", 1, nil},
		},
	},
	{
		"TCP connect, one at a time, known class, p50 and p99", "≤ 1.1 and ≤ 1.3 times an accept rule",
		slower("Connect/known", atMost(1.1), atMost(1.3)),
	},
	{
		"the same, unknown classes", "no goal",
		slower("Connect/unknown", nil, nil),
	},
	{
		"TCP connect, 500 a second, known class, beside another pod's 30,000 flows/s of unknown classes, p50 and p99", "≤ 1.3 and ≤ 2 times an accept rule, and 0.95 of that flood really sent",
		append(slower("Bystander/known", atMost(1.3), atMost(2)), sentBeside("Bystander/known", atLeast(reallySent*30000))),
	},
	{
		"the same, unknown classes", "no goal",
		append(slower("Bystander/unknown", nil, nil), sentBeside("Bystander/unknown", nil)),
	},
	{
		"connects/s, 64 clients, mixture of classes", "≥ 0.95 of an accept rule",
		[]check{
			{ratio("Clients/mixture"+agent, "Clients/mixture"+accept, "connects/s"), "%.2f", "", 1, atLeast(0.95)},
			{samplesOf("Clients/mixture"+agent, "asked-percent"), "%.0f", " % asked", 1, nil},
			{ratio("Clients/known"+agent, "Clients/known"+accept, "connects/s"), "%.2f", " of known classes", 1, nil},
			{ratio("Clients/unknown"+agent, "Clients/unknown"+accept, "connects/s"), "%.2f", " of unknown classes", 1, nil},
			{ratio("Clients/mixture"+asking, "Clients/mixture"+accept, "connects/s"), "%.2f", " where nothing is remembered", 1, nil},
		},
	},
	{
		"the agent's CPU time for each of these connections, known class", "0, less than 1 µs",
		[]check{
			{samplesOf("Clients/known"+agent, "decider-cpu-ns/connect"), "%.1f", " µs", micro, atMost(1000)},
			{samplesOf("Clients/unknown"+agent, "decider-cpu-ns/connect"), "%.1f", " µs of unknown classes", micro, nil},
			{samplesOf("Clients/mixture"+agent, "decider-cpu-ns/connect"), "%.1f", " µs of the mixture", micro, nil},
		},
	},
	{
		"flood of new UDP flows from a raw socket, one class, 11 policies", "≥ 0.95 of an accept rule",
		append([]check{
			{ratio("Flood/one"+agent, "Flood/one"+accept, "delivered/s"), "%.2f", "", 1, atLeast(0.95)},
			{ratio("Flood/one"+asking, "Flood/one"+accept, "delivered/s"), "%.2f", " where nothing is remembered", 1, nil},
		}, rates("Flood/one", accept, agent)...),
	},
	{
		"the same, each flow of an unknown class", "≥ 0.9 of a loop that accepts all queued packets",
		append([]check{
			{ratio("Flood/random"+agent, "Flood/random"+floor, "delivered/s"), "%.2f", "", 1, atLeast(0.9)},
			{ratio("Flood/random"+agent, "Flood/random"+accept, "delivered/s"), "%.2f", " of an accept rule", 1, nil},
		}, rates("Flood/random", accept, floor, agent)...),
	},
	{
		"new UDP flows of unknown classes at 60,000/s, and a burst of 8,192", "0 lost, and 0.95 of that rate really sent",
		[]check{
			{samplesOf("Paced/random"+agent, "lost"), "%.0f", " lost", 1, never},
			{samplesOf("Paced/random"+agent, "sent/s"), "%.0f", "/s sent", 1, atLeast(reallySent * 60000)},
			{samplesOf("Burst/random"+agent, "lost"), "%.0f", " lost of a burst", 1, never},
		},
	},
	{
		"flood of UDP flows that are denied, one class: CPU time of a flow, of sender, kernel and agent", "≤ 1.2 times a drop rule",
		[]check{
			{ratio("Flood/denied"+agent, "Flood/denied"+accept, "cpu-ns/flow"), "%.2f", "", 1, atMost(1.2)},
			{samplesOf("Flood/denied"+accept, "cpu-ns/flow"), "%.2f", " µs by a rule", micro, nil},
			{samplesOf("Flood/denied"+agent, "cpu-ns/flow"), "%.2f", " µs", micro, nil},
			{samplesOf("Flood/denied"+agent, "decider-cpu-ns/flow"), "%.2f", " µs in the agent", micro, nil},
		},
	},
	{
		"TCP connect, median, one at a time, unknown classes, 11 policies", "added latency ≤ 0.6 of what a plain go-nfqueue callback loop that accepts everything adds",
		[]check{{added("Connect/unknown"+agent, "Connect/unknown"+callback, "Connect/unknown"+accept, "p50-ns"), "%.2f", "", 1, atMost(0.6)}},
	},
	{
		"connects/s, 64 clients, unknown classes, 1,001 policies", "≥ 0.9 of the rate at 1 policy",
		[]check{{ratio("Clients/unknown"+agent1001, "Clients/unknown"+agent1, "connects/s"), "%.2f", "", 1, atLeast(0.9)}},
	},
	{
		"heap per realistic pod, 100,000 pods through the informers", "≤ 1 KB; resident memory of the agent ≤ 200 MB",
		[]check{
			{samplesOf(memory, "B/pod"), "%.0f", " B", 1, atMost(1024)},
			{samplesOf(memory, "rss-B"), "%.0f", " MB resident", 1e-6, atMost(200e6)},
		},
	},
	{
		"a pod's add or label change visible to verdicts, at 100,000 pods and 10,000 policies, 1,000 changes/s", "99 of 100 in ≤ 50 ms, ≤ 10 % of one core, work per change independent of the number of pods",
		append(latencies(podChange, nil, atMost(50e6)),
			check{samplesOf(podChange, "core-percent"), "%.1f", " % of a core", 1, atMost(10)},
			check{ratio(podChange, podChangeFew, "cpu-ns/change"), "%.2f", " times the work at 1,000 pods", 1, atMost(sameWork)},
		),
	},
	{
		"the same at 40 changes/s", "half of them in ≤ 3 ms",
		latencies(calmPod, atMost(3e6), nil),
	},
	{
		"a policy's change enforced (object seen to rule and verdict), at that size, 1,000 changes/s", "half of them in ≤ 3 ms, 99 of 100 in ≤ 100 ms",
		latencies(policyChange, atMost(3e6), atMost(100e6)),
	},
	{
		"the same at 40 changes/s", "half of them in ≤ 1 ms",
		latencies(calmPolicy, atMost(1e6), nil),
	},
	{
		"the last packet of an allowed flow after a policy denies it, 1,000 changes/s", "99 of 100 in ≤ 100 ms",
		latencies(revocation, nil, atMost(100e6)),
	},
	{
		"the same beside 250,000 finished connections of the pod, IPv4 and IPv6: all but a port is denied", "≤ 100 ms later than without",
		later("some", 100e6),
	},
	{
		"it is allowed again", "≤ 200 ms later than without",
		later("allowed", 200e6),
	},
	{
		"another pod gets the address: its slowest connection", "≤ 200 ms later than without",
		later("successor", 200e6),
	},
	{
		"CPU time of a write of the nftables table by netlink", "one element ≤ 1/20, the whole table ≤ 1/3 of that with the nft program",
		[]check{
			{ratio("KernelWrite/element/netlink", "KernelWrite/element/nft", "cpu-ns/op"), "%.3f", " for an element", 1, atMost(1.0 / 20)},
			{ratio("KernelWrite/table/netlink", "KernelWrite/table/nft", "cpu-ns/op"), "%.2f", " for the table", 1, atMost(1.0 / 3)},
			{samplesOf("KernelWrite/element/netlink", "cpu-ns/op"), "%.0f", " µs and", micro, nil},
			{samplesOf("KernelWrite/table/netlink", "cpu-ns/op"), "%.1f", " ms", milli, nil},
		},
	},
	{
		"a pod's change with ten other busy processes for each core, 1,000 changes/s", "no goal",
		latencies(busyPod, nil, nil),
	},
	{
		"a policy's change, likewise", "no goal",
		latencies(busyPolicy, nil, nil),
	},
	{
		"start with 100,000 pods and 10,000 policies: first snapshot enforced after the last list arrives", "≤ 2 s",
		[]check{{samplesOf(start, "ns/op"), "%.2f", " s", sec, atMost(2e9)}},
	},
}

// slower compares the agent's latencies with those of an accept rule, and shows the agent's
// own and those of an agent that remembers nothing.
func slower(measurement string, p50, p99 bound) []check {
	return []check{
		{ratio(measurement+agent, measurement+accept, "p50-ns"), "%.2f", " p50", 1, p50},
		{ratio(measurement+agent, measurement+accept, "p99-ns"), "%.2f", " p99", 1, p99},
		{samplesOf(measurement+accept, "p50-ns"), "%.0f", " µs p50 of the rule", micro, nil},
		{samplesOf(measurement+accept, "p99-ns"), "%.0f", " µs p99 of the rule", micro, nil},
		{ratio(measurement+asking, measurement+accept, "p50-ns"), "%.2f", " p50 where nothing is remembered", 1, nil},
		{ratio(measurement+asking, measurement+accept, "p99-ns"), "%.2f", " p99 where nothing is remembered", 1, nil},
	}
}

// sentBeside is the rate of the flood during a bystander's connections.
func sentBeside(measurement string, holds bound) check {
	return check{samplesOf(measurement+agent, "flood-sent/s"), "%.0f", "/s sent", 1, holds}
}

// rates are the sent and delivered packets in thousands per second, and the lost ones.
func rates(measurement string, ways ...string) (checks []check) {
	for _, way := range ways {
		checks = append(checks,
			check{samplesOf(measurement+way, "sent/s"), "%.0f", "k/s sent to " + strings.Split(way, "/")[1], kilo, nil},
			check{samplesOf(measurement+way, "delivered/s"), "%.0f", "k/s delivered", kilo, nil},
			check{samplesOf(measurement+way, "lost"), "%.0f", " lost", 1, nil})
	}
	return checks
}

// later is how much later a change is in force beside many connections, in each family.
func later(change string, limit float64) (checks []check) {
	for _, family := range []string{"0", "1"} {
		name := "Crowd/" + change + "/peers="
		base := samplesOf(name+"one/family="+family+"/entries=0", "ns")
		checks = append(checks, check{func(r *results.Results) results.Samples {
			return r.Samples(name+"many/family="+family+"/entries=250000", "ns").Minus(base(r))
		}, "%.0f", " ms", milli, atMost(limit)})
	}
	return checks
}

// latencies are those of a change, with the bounds that hold for them.
func latencies(measurement string, p50, p99 bound) []check {
	return []check{
		{samplesOf(measurement, "p50-ns"), "%.1f", " ms p50", milli, p50},
		{samplesOf(measurement, "p99-ns"), "%.1f", " ms p99", milli, p99},
		{samplesOf(measurement, "max-ns"), "%.1f", " ms at most", milli, nil},
	}
}
