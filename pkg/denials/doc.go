// Package denials collects what the agents of a cluster denied lately, as a short text for
// each policy. It knows agents by their pods and by what they answer, and does not know where
// the texts are shown. An agent may be lying: what it says is bounded, and only shown.
package denials
