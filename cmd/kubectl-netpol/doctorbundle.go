package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// A log in the bundle has at most its last lines, and so many bytes of them.
const (
	maxLogLines int64 = 20_000
	maxLog      int64 = 4 << 20
)

// secret is text of logs and messages that lets its reader in: tokens, and what follows their names.
var secret = regexp.MustCompile(`eyJ[\w-]{8,}(\.[\w-]*)*|(?i)(bearer|basic|token|password|secret)(["']?\s*[:= ]\s*["']?)[^\s"',]{8,}`)

// bundle is an archive of files with what a report of a fault needs. It has single fields of objects and no
// object as a whole, because annotations, variables and arguments may have secrets.
type bundle struct {
	*examination
	archive *tar.Writer
	err     error
}

// writeBundle writes the bundle. What cannot be read is in it as an error.
func (x *examination) writeBundle(ctx context.Context, path string) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	packed := gzip.NewWriter(file)
	b := &bundle{examination: x, archive: tar.NewWriter(packed)}
	found, errFound := json.MarshalIndent(x.diagnosis, "", "  ")
	b.add("diagnosis.json", found, errFound)
	b.addNodes()
	b.addStatuses(ctx)
	for i, a := range x.Agents {
		b.add("agents/"+a.Pod+".metrics", x.metrics[i], nil)
	}
	for i := range x.agents {
		pod := &x.agents[i]
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		table, err := x.output(ctx, name, agentContainer, agentCommand, "probe", "table")
		b.add("agents/"+name.String()+".table", table, err)
		b.addLogs(ctx, "agents/", pod, agentContainer)
	}
	for i := range x.writers {
		b.addLogs(ctx, "status-writer/", &x.writers[i], writerContainer)
	}
	return errors.Join(b.err, b.archive.Close(), packed.Close())
}

// add adds a file, with the error if its content could not be read.
func (b *bundle) add(name string, content []byte, err error) {
	if err != nil {
		name, content = name+".error", []byte(err.Error()+"\n")
	}
	content = secret.ReplaceAll(content, []byte("$2$3<left out>"))
	header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: time.Now()}
	if b.err == nil {
		b.err = b.archive.WriteHeader(header)
	}
	if b.err == nil {
		_, b.err = b.archive.Write(content)
	}
}

// addLogs adds the log of a container, and that before its last restart.
func (b *bundle) addLogs(ctx context.Context, folder string, pod *corev1.Pod, container string) {
	lines, limit := maxLogLines, maxLog
	for name, previous := range map[string]bool{".log": false, ".previous.log": true} {
		log, err := b.cluster.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: &lines, LimitBytes: &limit}).Stream(ctx)
		if err != nil {
			b.add(folder+pod.Namespace+"/"+pod.Name+name, nil, err)
			continue
		}
		text, err := io.ReadAll(io.LimitReader(log, maxLog))
		b.add(folder+pod.Namespace+"/"+pod.Name+name, text, errors.Join(err, log.Close()))
	}
}

// addNodes adds what nodes run.
func (b *bundle) addNodes() {
	var text bytes.Buffer
	for i := range b.nodes {
		n, info := &b.nodes[i], &b.nodes[i].Status.NodeInfo
		fmt.Fprintf(&text, "%s: %s, Linux %s, %s, %s, kubelet %s, pod ranges %s\n", n.Name, info.OSImage, info.KernelVersion, info.Architecture,
			info.ContainerRuntimeVersion, info.KubeletVersion, strings.Join(n.Spec.PodCIDRs, " "))
	}
	b.add("nodes", text.Bytes(), nil)
}

// addStatuses adds the conditions of all policies.
func (b *bundle) addStatuses(ctx context.Context) {
	for _, kind := range compile.Kinds {
		var text bytes.Buffer
		var errs []error
		for _, r := range kind.Resources() { // the server may serve an older version only
			list, err := b.cluster.objects.Resource(r).List(ctx, metav1.ListOptions{})
			errs = append(errs, err)
			if err != nil {
				continue
			}
			for i := range list.Items {
				o := &list.Items[i]
				fmt.Fprintf(&text, "%s/%s generation %d\n", o.GetNamespace(), o.GetName(), o.GetGeneration())
				for _, c := range conditions(o) {
					fmt.Fprintf(&text, "  %s=%s %s generation %d: %s\n", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message)
				}
			}
			errs = nil
			break
		}
		b.add("policies/"+kind.Name, text.Bytes(), errors.Join(errs...))
	}
}
