// Package netns has no code of its own: its tests ask the kernel whether it
// agrees. They run the agent's binary on nodes made of network namespaces and
// see what becomes of real packets. They need root, nft and ip; without them
// they are skipped unless NETNS_REQUIRED is set.
package netns
