// Package denials collects what the agents of a cluster denied recently, as a short text for
// each policy. It knows the agents' pods and answers, but not where the texts are shown. An
// agent may be compromised: its answers are bounded, and only shown.
package denials
