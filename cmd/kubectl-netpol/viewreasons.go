package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// packedReasons are the reasons of the cells of a row. Most of their lines are those of other cells,
// too.
type packedReasons struct {
	Lines []string  `json:"lines"`
	Cells [][][]int `json:"cells"` // by column and text, indexes of lines
}

// packReasons returns the reasons of a row as the script of the page reads them: JSON, compressed by
// gzip, in the URL's variant of base64, which templates need not escape.
func (p *pages) packReasons(s *state, o *reachability.Overview, row int) (string, error) {
	var packed packedReasons
	known := map[string]int{}
	for column := range o.To {
		cell := [][]int{}
		for _, text := range p.explainCell(s, o, row, column) {
			var lines []int
			for line := range strings.SplitSeq(text, "\n") {
				i, seen := known[line]
				if !seen {
					i = len(packed.Lines)
					known[line] = i
					packed.Lines = append(packed.Lines, line)
				}
				lines = append(lines, i)
			}
			cell = append(cell, lines)
		}
		packed.Cells = append(packed.Cells, cell)
	}
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		err = json.NewEncoder(compressed).Encode(packed)
	}
	if err == nil {
		err = compressed.Close()
	}
	return base64.RawURLEncoding.EncodeToString(out.Bytes()), err
}
