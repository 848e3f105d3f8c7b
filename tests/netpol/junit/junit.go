// Package junit writes test results in the XML format of JUnit, which CI systems read. It
// uses only the elements on which they agree.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// Suite is a list of tests that belong together.
type Suite struct {
	Name       string
	Properties []Property
	Cases      []Case
}

// Property is a value that belongs to the whole Suite.
type Property struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// Case is one test. The first non-empty one of Error, Failure and Skipped counts; without
// any, the case has passed. Summaries show its first line.
type Case struct {
	Class string // the group of the test
	Name  string
	File  string // where the test is defined, if in a file
	Took  time.Duration

	Error   string // why there is no result
	Failure string
	Skipped string
}

// Write writes the suites as one document.
func Write(w io.Writer, suites ...Suite) error {
	document := suitesXML{}
	for _, s := range suites {
		document.Suites = append(document.Suites, s.xml())
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

type suitesXML struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suites  []suiteXML `xml:"testsuite"`
}

type suiteXML struct {
	Name       string         `xml:"name,attr"`
	Tests      int            `xml:"tests,attr"`
	Failures   int            `xml:"failures,attr"`
	Errors     int            `xml:"errors,attr"`
	Skipped    int            `xml:"skipped,attr"`
	Time       string         `xml:"time,attr"` // in seconds
	Properties *propertiesXML `xml:"properties"`
	Cases      []caseXML      `xml:"testcase"`
}

type propertiesXML struct {
	Properties []Property `xml:"property"`
}

type caseXML struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	File    string   `xml:"file,attr,omitempty"`
	Time    string   `xml:"time,attr"` // in seconds
	Error   *textXML `xml:"error"`
	Failure *textXML `xml:"failure"`
	Skipped *textXML `xml:"skipped"`
}

type textXML struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (s Suite) xml() suiteXML {
	out := suiteXML{Name: s.Name, Tests: len(s.Cases)}
	if len(s.Properties) > 0 {
		out.Properties = &propertiesXML{s.Properties}
	}
	var took time.Duration
	for _, c := range s.Cases {
		took += c.Took
		x := caseXML{Class: c.Class, Name: c.Name, File: c.File, Time: seconds(c.Took)}
		switch {
		case c.Error != "":
			out.Errors++
			x.Error = text(c.Error)
		case c.Failure != "":
			out.Failures++
			x.Failure = text(c.Failure)
		case c.Skipped != "":
			out.Skipped++
			x.Skipped = text(c.Skipped)
		}
		out.Cases = append(out.Cases, x)
	}
	out.Time = seconds(took)
	return out
}

func text(s string) *textXML {
	first, _, _ := strings.Cut(s, "\n")
	return &textXML{Message: first, Text: s}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
