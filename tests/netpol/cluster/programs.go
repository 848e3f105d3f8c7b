package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// program serves and connects in pods.
type program interface {
	// serve returns the command and the environment of a container that serves ports.
	serve(ports []int32) ([]string, []corev1.EnvVar)
	// idle and end are commands of containers that only declare ports: one runs, one ends at once.
	idle() []string
	end() []string
	// try is the command of a session. It reads what encode returns and writes what decode reads, one
	// result for each attempt.
	try() []string
	encode(attempts []attempt) ([]byte, error)
	decode(*json.Decoder) (result, error)
}

// prober is that of kube-network-policies (docs/testing/prober.md).
type prober struct{ sctp bool }

func (p prober) serve(ports []int32) ([]string, []corev1.EnvVar) {
	command := []string{"prober", "serve"}
	if p.sctp {
		command = append(command, "-sctp")
	}
	for _, port := range ports {
		command = append(command, fmt.Sprintf("-listen=:%d", port))
	}
	return command, nil
}

func (prober) idle() []string { return []string{"prober", "serve", "-listen=127.0.0.1:0"} }
func (prober) end() []string  { return []string{"prober", "version"} }
func (prober) try() []string {
	return []string{"prober", "try", "-at-once=" + strconv.Itoa(attemptsAtOnce)}
}

func (prober) encode(attempts []attempt) ([]byte, error) {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, a := range attempts {
		if err := encoder.Encode(a); err != nil {
			return nil, err
		}
	}
	return lines.Bytes(), nil
}

func (prober) decode(from *json.Decoder) (r result, err error) {
	err = from.Decode(&r)
	return r, err
}

// agnhost is the image of Kubernetes' own tests. Its porter serves, and its netexec sends datagrams for
// requests, which pods make to themselves. All attempts of a table are one call of curl,
// because a process for each, such as "agnhost connect", takes thirty times as long.
type agnhost struct{ dialPort string }

const (
	// netexecPort is below the ports of NodePorts and of clients.
	netexecPort = "28080"
	// served is what porter answers, and dialled what netexec answers if it gets that.
	served  = "x"
	dialled = `{"responses":["` + served + `"]}`
)

func (p agnhost) serve(ports []int32) ([]string, []corev1.EnvVar) {
	var env []corev1.EnvVar
	for _, port := range ports {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("SERVE_TCP_PORT_%d", port), Value: served}, corev1.EnvVar{Name: fmt.Sprintf("SERVE_UDP_PORT_%d", port), Value: served})
	}
	return []string{"sh", "-c", "/agnhost netexec --udp-port=-1 --http-port=" + p.dialPort + " & exec /agnhost porter"}, env
}

func (agnhost) idle() []string { return []string{"/agnhost", "pause"} }
func (agnhost) end() []string  { return []string{"/agnhost", "help"} }

// try reads lines of curl's arguments, without words that the shell would expand.
func (agnhost) try() []string {
	return []string{"sh", "-c", "set -f; while read -r arguments; do curl $arguments; done"}
}

func (p agnhost) encode(attempts []attempt) ([]byte, error) {
	if len(attempts) == 0 {
		return nil, nil
	}
	var transfers []string
	for _, a := range attempts {
		target, err := url.Parse(a.Target)
		if err != nil {
			return nil, err
		}
		address := "http://" + target.Host + "/"
		if target.Scheme == "udp" {
			query := url.Values{"protocol": {"udp"}, "host": {target.Hostname()}, "port": {target.Port()}, "request": {"hostname"}}
			address = "http://127.0.0.1:" + p.dialPort + "/dial?" + query.Encode()
		}
		transfers = append(transfers, fmt.Sprintf(`-gs --noproxy * -o /dev/null -m %g -w {"id":%d,"udp":%t,"exit":%%{exitcode},"size":%%{size_download}}\n %s`,
			(time.Duration(a.Milliseconds)*time.Millisecond).Seconds(), a.ID, target.Scheme == "udp", address))
	}
	return fmt.Appendf(nil, "--no-progress-meter -Z --parallel-immediate --parallel-max %d %s\n", attemptsAtOnce, strings.Join(transfers, " --next ")), nil
}

// Exit statuses of curl.
const (
	curlAnswered = 0
	curlRefused  = 7 // or unreachable
	curlTimedOut = 28
	curlNothing  = 52 // no bytes before the end
	curlReset    = 56
)

func (agnhost) decode(from *json.Decoder) (result, error) {
	var a struct {
		ID   int  `json:"id"`
		UDP  bool `json:"udp"`
		Exit int  `json:"exit"`
		Size int  `json:"size"`
	}
	if err := from.Decode(&a); err != nil {
		return result{}, err
	}
	r := result{ID: a.ID, Error: fmt.Sprintf("curl ended with %d", a.Exit)}
	switch {
	case a.Exit == curlAnswered && (!a.UDP || a.Size == len(dialled)):
		r.Error = ""
	case a.Exit == curlTimedOut:
		r.Failure = "timeout"
	case a.Exit == curlAnswered, !a.UDP && (a.Exit == curlRefused || a.Exit == curlNothing || a.Exit == curlReset):
		r.Failure = "refused"
	default:
		r.Failure = "other"
	}
	return r, nil
}
