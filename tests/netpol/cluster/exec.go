package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a command in a container of a pod until it ends. Like kubectl exec, it needs
// only the right to create pods/exec. It falls back to SPDY if the API server refuses a
// WebSocket, because the server is older than 1.30 or because a WebSocket also needs the
// right to get pods/exec.
func Exec(ctx context.Context, access *rest.Config, client kubernetes.Interface, pod types.NamespacedName, container string, command []string, streams remotecommand.StreamOptions) error {
	address := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: command,
			Stdin: streams.Stdin != nil, Stdout: streams.Stdout != nil, Stderr: streams.Stderr != nil,
		}, scheme.ParameterCodec).URL()
	overSPDY, err := remotecommand.NewSPDYExecutor(access, "POST", address)
	if err != nil {
		return err
	}
	overWebSocket, err := remotecommand.NewWebSocketExecutor(access, "GET", address.String())
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	// The error has the reason of a failure. client-go would also log it, even after ctx has
	// ended.
	return executor.StreamWithContext(klog.NewContext(ctx, klog.Logger{}), streams)
}
