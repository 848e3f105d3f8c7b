package compile

// NPEP-127 proposes networks and nodes as peers of ingress, which egress has (CN-42).

var gateIngressByAddress = &Gate{
	"IngressByAddress", Proposed, "NPEP-127", "`networks` and `nodes` as peers of ingress in administrators' policies",
	func(f *Features) *bool { return &f.IngressByAddress },
}
