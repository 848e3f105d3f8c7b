//go:build !race

package queue

// raceDetector is set with the race detector, which allocates.
const raceDetector = false
