package junit

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWrite(t *testing.T) {
	var out strings.Builder
	err := Write(&out,
		Suite{Name: "policies", Cases: []Case{
			{Class: "shop", Name: "web -> db", File: "intent.yaml", Took: 1500 * time.Millisecond},
			{Class: "shop", Name: `a "quoted" <name>`, Failure: "denied\nby shop/db & others\x00", Took: time.Millisecond},
			{Class: "shop", Name: "no answer", Error: "no such pod"},
			{Class: "shop", Name: "left out", Skipped: "IPv6"},
		}},
		Suite{Name: "empty", Properties: []Property{{Name: "kernel", Value: "6.18"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="policies" tests="4" failures="1" errors="1" skipped="1" time="1.501">
    <testcase classname="shop" name="web -&gt; db" file="intent.yaml" time="1.500"></testcase>
    <testcase classname="shop" name="a &#34;quoted&#34; &lt;name&gt;" time="0.001">
      <failure message="denied">denied&#xA;by shop/db &amp; others` + "\uFFFD" + `</failure>
    </testcase>
    <testcase classname="shop" name="no answer" time="0.000">
      <error message="no such pod">no such pod</error>
    </testcase>
    <testcase classname="shop" name="left out" time="0.000">
      <skipped message="IPv6">IPv6</skipped>
    </testcase>
  </testsuite>
  <testsuite name="empty" tests="0" failures="0" errors="0" skipped="0" time="0.000">
    <properties>
      <property name="kernel" value="6.18"></property>
    </properties>
  </testsuite>
</testsuites>
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

type fullDisk struct{ left int }

func (d *fullDisk) Write(p []byte) (int, error) {
	d.left--
	if d.left < 0 {
		return 0, errors.New("no space left")
	}
	return len(p), nil
}

func TestWriteReturnsErrors(t *testing.T) {
	for left := range 3 {
		if err := Write(&fullDisk{left}, Suite{Name: "s"}); err == nil {
			t.Errorf("a failure after %d bytes is not reported", left)
		}
	}
}
