//go:build race

package newpods

const fleetSize = 500 // as each handshake takes longer
