package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

const keyName = "key"

// keyOptions are what the command key writes, without flags: agents agree on it.
type keyOptions struct {
	file    string // of the key
	message string // file from which the kubelet reads the last message of a container
}

func newKeyOptions() *keyOptions {
	return &keyOptions{file: tlskey.File, message: "/dev/termination-log"}
}

func (o *keyOptions) AddFlags(*pflag.FlagSet) {}

func (o *keyOptions) Validate(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("arguments %q: there are none", args)
	}
	return nil
}

func (o *keyOptions) Run(context.Context) error {
	message, err := tlskey.Make(o.file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.message, []byte(message), 0o600); err != nil {
		return fmt.Errorf("publish the key: %w", err)
	}
	return nil
}
