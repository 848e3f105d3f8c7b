//go:build !race

package newpods

// fleetSize is the number of nodes in docs/performance.
const fleetSize = 5000
