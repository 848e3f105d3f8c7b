package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// printLimits says what could not be read of the live cluster.
func (o *options) printLimits(w io.Writer) {
	for _, limit := range o.limits {
		fmt.Fprintf(w, "Not read: %s.\n", limit)
	}
}

// withLimits returns an answer for JSON, an object, with what could not be read in the
// field "limits".
func (o *options) withLimits(answer any) any {
	if len(o.limits) == 0 {
		return answer
	}
	return limited{answer, o.limits}
}

type limited struct {
	answer any
	limits []string
}

// MarshalJSON adds the field to those of the answer.
func (l limited) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l.answer); err != nil {
		return nil, err
	}
	out.Truncate(out.Len() - len("}\n"))
	out.WriteString(`,"limits":`)
	if err := enc.Encode(l.limits); err != nil {
		return nil, err
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
