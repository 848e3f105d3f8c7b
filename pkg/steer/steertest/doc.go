// Package steertest asks a knftables.Fake what a packet would do: it walks the
// chains that a packet meets at the hooks of its way, as the kernel would. It
// knows the words of nftables that our rules are made of, and refuses all others.
package steertest
