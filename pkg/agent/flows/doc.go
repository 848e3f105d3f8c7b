// Package flows records for operators what policies decided: similar decisions as one flow
// with a count, and some denied packets individually. Its memory is bounded whatever pods
// send, and it never delays a verdict: decisions that it has no room for are counted as lost.
//
// Tap, on the packet path, only counts the decision in a buffer of fixed size. One
// goroutine drains the buffer once a second, or when a part of it is half full, and adds the
// decisions up. Names of pods come from the snapshot that decided.
package flows
