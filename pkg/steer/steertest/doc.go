// Package steertest traces packets through the rules of a knftables.Fake as the kernel
// would. It knows the nftables expressions that our rules use; all others are errors.
package steertest
