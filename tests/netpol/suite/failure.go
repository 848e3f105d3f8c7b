package suite

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// alone returns the command line that plays one scenario as this one does.
func alone(program string, args []string, scenario string) string {
	words := []string{program}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if name == "run" || name == "profile" {
			if !joined {
				i++ // its value
			}
			continue
		}
		words = append(words, quoted(args[i]))
	}
	return strings.Join(append(words, "-run", quoted("^"+regexp.QuoteMeta(scenario)+"$")), " ")
}

var plain = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted returns a word for a shell.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// explainer evaluates policies: the plugin of kube-network-policies.
const explainer = "kubectl-netpol"

// explain returns what the explainer says of the first wrong cell, if there is one.
func explain(ctx context.Context, r netpol.Result) string {
	wrong, _, state := r.FirstWrong()
	if state == nil {
		return ""
	}
	args := []string{"explain", endpoint(state, wrong.From, wrong), endpoint(state, wrong.To, wrong), "-f", "-", "--family", string(wrong.Family), "--protocol", string(wrong.Protocol)}
	if wrong.Protocol != netpol.ICMP {
		args = append(args, "--port", strconv.Itoa(int(wrong.Port)))
	}
	line := explainer + " " + strings.Join(args, " ")
	if _, err := exec.LookPath(explainer); err != nil {
		return fmt.Sprintf("Explained by %s, which is not in PATH\n", line)
	}
	cmd := exec.CommandContext(ctx, explainer, args...)
	cmd.Stdin = strings.NewReader(netpol.Manifest(state.Namespaces...) + netpol.Manifest(state.Pods...) + netpol.Manifest(state.AllPolicies()...))
	output, err := cmd.CombinedOutput()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) { // which also means denied
		return fmt.Sprintf("%s: %v\n", line, err)
	}
	return fmt.Sprintf("Explained by %s:\n%s", line, output)
}

// endpoint returns the name of a pod, or the address of a host.
func endpoint(state *netpol.State, name string, c netpol.Connection) string {
	for _, host := range state.Hosts {
		if host.Name == name {
			return state.Addr(name, c.Family).String()
		}
	}
	return name
}
