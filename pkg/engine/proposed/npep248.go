package proposed

// All selects every peer, in the cluster and outside (NPEP-248).
type All struct{}
