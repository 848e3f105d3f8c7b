// Package flows records what policies decided, for people: decisions that are alike as one
// flow with a count, and some denied packets one by one. Its memory has a bound, whatever
// pods send, and it never delays a verdict: what it cannot take is counted as lost.
//
// Decided, on the path of packets, only counts the decision in a buffer of fixed size. One
// goroutine takes decisions out of it, once a second or when a part of it is half full, and
// adds them up. Names of pods are those of the snapshot that decided.
package flows
