//go:build !race

package newpods

// fleetSize is the number of nodes in docs/scalability.md.
const fleetSize = 5000
