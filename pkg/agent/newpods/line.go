package newpods

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// sandbox is a clusterstate.Sandbox in an answer.
type sandbox struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       types.UID    `json:"uid"`
	Addrs     []netip.Addr `json:"addrs"`
}

// key identifies a sandbox: an address of a pod.
type key struct {
	namespace, name string
	uid             types.UID
	first           unique.Handle[netip.Addr]
}

func keyOfSandbox(s clusterstate.Sandbox) key {
	var first netip.Addr
	if len(s.Addrs) > 0 {
		first = s.Addrs[0]
	}
	return key{s.Namespace, s.Name, s.UID, unique.Make(first)}
}

func fromState(s clusterstate.Sandbox) sandbox {
	return sandbox{s.Namespace, s.Name, s.UID, s.Addrs}
}

// lines returns a scanner of the lines of an answer: an agent may be compromised.
func lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4<<10), bounds.LineBytes)
	return s
}

// parse reads a line of an answer.
func parse(line []byte) ([]clusterstate.Sandbox, error) {
	var t report
	if err := json.Unmarshal(line, &t); err != nil {
		return nil, fmt.Errorf("the answer is not readable: %w", err)
	}
	if len(t.Sandboxes) > bounds.LineSandboxes {
		return nil, fmt.Errorf("the answer has %d sandboxes, more than %d", len(t.Sandboxes), bounds.LineSandboxes)
	}
	sandboxes := make([]clusterstate.Sandbox, len(t.Sandboxes))
	for i, s := range t.Sandboxes {
		if max(len(s.Namespace), len(s.Name), len(s.UID)) > bounds.Name || len(s.Addrs) > bounds.LineAddresses {
			return nil, errors.New("the answer has a sandbox that no pod can have")
		}
		sandboxes[i] = clusterstate.Sandbox{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Addrs: s.Addrs}
	}
	return sandboxes, nil
}
