package main

import (
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/version"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
)

// The elements of SARIF 2.1.0 that check writes (OASIS, Static Analysis Results Interchange
// Format, sections 3.13 to 3.35).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID                   string             `json:"id"`
		ShortDescription     sarifText          `json:"shortDescription"`
		FullDescription      sarifText          `json:"fullDescription"`
		Help                 sarifText          `json:"help"`
		DefaultConfiguration sarifConfiguration `json:"defaultConfiguration"`
	}
	sarifConfiguration struct {
		Level string `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		RuleIndex    int                `json:"ruleIndex"`
		Level        string             `json:"level"`
		Message      sarifText          `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	}
	sarifLocation struct {
		PhysicalLocation *sarifPhysical `json:"physicalLocation,omitempty"`
		LogicalLocations []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		ArtifactLocation sarifArtifact `json:"artifactLocation"`
		Region           *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
	sarifLogical struct {
		FullyQualifiedName string `json:"fullyQualifiedName"`
		Kind               string `json:"kind"`
	}
	sarifSuppression struct {
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
)

const sarifSchema = "https://json.schemastore.org/sarif-2.1.0.json"

var sarifLevels = map[lint.Severity]string{lint.Error: "error", lint.Warning: "warning", lint.Info: "note"}

func writeSARIF(w io.Writer, r *report) error {
	run := sarifRun{
		Tool:       sarifTool{sarifDriver{Name: "kubectl-netpol", Version: version.Version}},
		ColumnKind: "utf16CodeUnits",
		Results:    []sarifResult{},
	}
	index := map[string]int{}
	for i, rule := range lint.Rules {
		index[rule.ID] = i
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, newSARIFRule(rule))
	}
	for _, f := range r.Findings {
		run.Results = append(run.Results, newSARIFResult(f, index[f.Rule]))
	}
	for _, f := range r.Ignored {
		result := newSARIFResult(f, index[f.Rule])
		result.Suppressions = []sarifSuppression{{"inSource", f.Reason}}
		run.Results = append(run.Results, result)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(sarifLog{sarifSchema, "2.1.0", []sarifRun{run}})
}

func newSARIFRule(r *lint.Rule) sarifRule {
	rule := sarifRule{
		ID:                   r.ID,
		ShortDescription:     sarifText{r.Title},
		FullDescription:      sarifText{r.Why},
		DefaultConfiguration: sarifConfiguration{sarifLevels[r.Severity]},
	}
	rule.Help = sarifText{strings.TrimSpace(r.Fix + " (docs/lints.md#" + r.ID + ")")}
	return rule
}

func newSARIFResult(f finding, index int) sarifResult {
	location := sarifLocation{LogicalLocations: []sarifLogical{{f.subject(), "object"}}}
	if f.File != "" && f.File != "-" {
		location.PhysicalLocation = &sarifPhysical{ArtifactLocation: sarifArtifact{fileURI(f.File)}}
		if f.Line > 0 {
			location.PhysicalLocation.Region = &sarifRegion{f.Line}
		}
	}
	return sarifResult{
		RuleID: f.Rule, RuleIndex: index, Level: sarifLevels[f.Severity],
		Message:   sarifText{f.subject() + ": " + ended(f.Message) + " " + f.Fix},
		Locations: []sarifLocation{location},
	}
}

// ended returns a message with a full stop, unless it is a question.
func ended(message string) string {
	if strings.HasSuffix(message, "?") {
		return message
	}
	return message + "."
}

// fileURI returns the URI of a file, relative if the path is.
func fileURI(file string) string {
	u := url.URL{Path: filepath.ToSlash(file)}
	if filepath.IsAbs(file) {
		u.Scheme = "file"
	}
	return u.String()
}
