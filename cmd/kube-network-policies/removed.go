package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// removedFlags are flags of earlier versions, with what to do instead.
var removedFlags = map[string]string{
	"block-established": "established connections that policies no longer allow are always blocked: remove the flag",
	"otlp-ca-file":      collectorsRead,
	"otlp-endpoint":     collectorsRead,
	"otlp-interval":     collectorsRead,
}

const collectorsRead = "an OpenTelemetry collector can read what --flow-log writes, see docs/flows.md"

// explainRemoved adds to the error about an unknown flag what to do instead of a removed one.
func explainRemoved(err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	instead, ok := removedFlags[unknown.GetSpecifiedName()]
	if !ok {
		return err
	}
	return fmt.Errorf("--%s was removed: %s", unknown.GetSpecifiedName(), instead)
}
