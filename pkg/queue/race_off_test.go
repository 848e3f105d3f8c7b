//go:build !race

package queue

// raceDetector is set where the race detector counts allocations of its own.
const raceDetector = false
