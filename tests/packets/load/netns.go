// Package load generates traffic in network namespaces: datagrams that are each a new flow,
// and connections one after the other. It knows addresses and names of namespaces, but not
// what decides about the packets.
package load

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Inside runs f on a thread in the network namespace at path. Sockets that f opens stay in
// it and may be used from any goroutine.
//
// A program that uses it must lock its main goroutine to the main thread
// (runtime.LockOSThread in an init function), because /proc/self refers to that thread.
func Inside(path string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := enter(path)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func enter(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}
