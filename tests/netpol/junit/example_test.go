package junit_test

import (
	"fmt"
	"os"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol/junit"
)

func ExampleWrite() {
	err := junit.Write(os.Stdout, junit.Suite{Name: "policies", Cases: []junit.Case{
		{Class: "shop", Name: "web -> db", Took: 1500 * time.Millisecond},
		{Class: "shop", Name: "guest -> db", Failure: "allowed by shop/db", Took: time.Millisecond},
	}})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// <?xml version="1.0" encoding="UTF-8"?>
	// <testsuites>
	//   <testsuite name="policies" tests="2" failures="1" errors="0" skipped="0" time="1.501">
	//     <testcase classname="shop" name="web -&gt; db" time="1.500"></testcase>
	//     <testcase classname="shop" name="guest -&gt; db" time="0.001">
	//       <failure message="allowed by shop/db">allowed by shop/db</failure>
	//     </testcase>
	//   </testsuite>
	// </testsuites>
}
