// Package steertest traces packets through the rules of a knftables.Fake like the kernel. It knows the
// nftables expressions that our rules use, and returns errors for all others.
package steertest
