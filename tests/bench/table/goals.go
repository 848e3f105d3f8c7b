package main

// Names of measurements.
const (
	verdict      = "Verdict/policies=1/pods=1000"
	verdictLarge = "Verdict/policies=10000/pods=100000"
	firstPacket  = "FirstPacket/policies=10000/pods=100000"

	accept    = "/accept"
	callback  = "/callback"
	agent1    = "/agent/policies=1/queues=2"
	agent11   = "/agent/policies=11/queues=2"
	agent1001 = "/agent/policies=1001/queues=2"

	memory       = "Memory/policies=10000/pods=100000"
	podChange    = "PodChange/policies=10000/pods=100000"
	podChangeFew = "PodChange/policies=10000/pods=1000"
	policyChange = "PolicyChange/policies=10000/pods=100000"
	start        = "Start/policies=10000/pods=100000"
)

// sameWork is the most that work may differ which is to be the same: pods by the
// hundred thousand miss the processor's caches, a thousand do not.
const sameWork = 2

const (
	milli = 1e-6 // nanoseconds in milliseconds
	sec   = 1e-9 // nanoseconds in seconds
)

// goals are the rows.
var goals = []goal{
	{
		"one verdict (parse and evaluate), 1 policy on the pod, 1,000 pods", "≤ 500 ns, 0 allocations",
		[]check{
			{of(verdict, "ns/op"), "%.0f", " ns", 1, atMost(500)},
			{of(verdict, "allocs/op"), "%.0f", " allocations", 1, never},
		},
	},
	{
		"the same at 10,000 policies that all select the pod, 100,000 pods", "≤ 3 times the figure at 1 policy, 0 allocations; the first packet of a new peer ≤ 1 ms",
		[]check{
			{ratio(verdictLarge, verdict, "ns/op"), "%.2f", " times", 1, atMost(3)},
			{of(verdictLarge, "allocs/op"), "%.0f", " allocations", 1, never},
			{of(firstPacket, "ns/op"), "%.2f", " ms for the first packet", milli, atMost(1e6)},
		},
	},
	{
		"new UDP flows through one queued hop, 11 policies, flood at the generator's limit", "≥ 0.9 of the same hop with a plain accept rule, 0 lost at 60,000 flows/s, a burst of 8,192 absorbed",
		[]check{
			{ratio("UDPFlows"+agent11, "UDPFlows"+accept, "flows/s"), "%.2f", "", 1, atLeast(0.9)},
			{ratio("UDPSockets"+agent11, "UDPSockets"+accept, "flows/s"), "%.2f", " with a socket for each flow", 1, always},
			{of("UDPPaced"+agent11, "lost"), "%.0f", " lost", 1, never},
			{of("UDPPaced"+agent11, "sent/s"), "%.0f", "/s sent", 1, always},
			{of("UDPBurst"+agent11, "lost"), "%.0f", " lost of a burst", 1, never},
		},
	},
	{
		"TCP connect, median, one at a time, 11 policies", "added latency ≤ 0.6 of what a plain go-nfqueue callback loop that accepts everything adds",
		[]check{{added("TCPConnect"+agent11, "TCPConnect"+callback, "TCPConnect"+accept, "p50-ns"), "%.2f", "", 1, atMost(0.6)}},
	},
	{
		"connects/s, 64 clients, 1,001 policies", "≥ 0.9 of the rate at 1 policy",
		[]check{{ratio("TCPClients"+agent1001, "TCPClients"+agent1, "connects/s"), "%.2f", "", 1, atLeast(0.9)}},
	},
	{
		"heap per realistic pod, 100,000 pods through the informers", "≤ 1 KB; resident memory of the agent ≤ 200 MB",
		[]check{
			{of(memory, "B/pod"), "%.0f", " B", 1, atMost(1024)},
			{of(memory, "rss-B"), "%.0f", " MB resident", 1e-6, atMost(200e6)},
		},
	},
	{
		"a pod's add or label change visible to verdicts, at 100,000 pods and 10,000 policies, 1,000 changes/s", "99 of 100 in ≤ 50 ms, ≤ 10 % of one core, work per change independent of the number of pods",
		[]check{
			{of(podChange, "p99-ns"), "%.1f", " ms", milli, atMost(50e6)},
			{of(podChange, "core-percent"), "%.1f", " % of a core", 1, atMost(10)},
			{ratio(podChange, podChangeFew, "cpu-ns/change"), "%.2f", " times the work at 1,000 pods", 1, atMost(sameWork)},
		},
	},
	{
		"a policy's change enforced (object seen to rule and verdict), at that size", "99 of 100 in ≤ 100 ms",
		[]check{{of(policyChange, "p99-ns"), "%.1f", " ms", milli, atMost(100e6)}},
	},
	{
		"start with 100,000 pods and 10,000 policies: first snapshot enforced after the last list arrives", "≤ 2 s",
		[]check{{of(start, "ns/op"), "%.2f", " s", sec, atMost(2e9)}},
	},
}
