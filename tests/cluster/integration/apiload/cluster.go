package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

// writesAtOnce is how many requests create the cluster at the same time.
const writesAtOnce = 32

// cluster is a modelled cluster in an API server.
type cluster struct {
	model    *model.Cluster
	client   kubernetes.Interface
	policies int
	changes  int // so far
}

func newCluster(cfg model.Config, config *rest.Config) (*cluster, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{model: model.Draw(cfg), client: client}, nil
}

// fill creates all objects.
func (c *cluster) fill(ctx context.Context) error {
	namespaces, objects := writers(ctx), writers(ctx)
	for i := range c.model.Namespaces {
		namespaces.Go(func() error {
			_, err := c.client.CoreV1().Namespaces().Create(ctx, c.model.Namespace(i), metav1.CreateOptions{})
			return err
		})
	}
	if err := namespaces.Wait(); err != nil {
		return err
	}
	for i := range c.model.Nodes {
		cidr := model.Range(i).String()
		objects.Go(func() error {
			_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: model.NodeName(i)},
				Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	for i := range c.model.Namespaces {
		for _, p := range c.model.Policies(i) {
			c.policies++
			objects.Go(func() error {
				_, err := c.client.NetworkingV1().NetworkPolicies(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
				return err
			})
		}
	}
	for p := range c.model.Pods {
		objects.Go(func() error {
			if err := c.create(ctx, c.model.Object(p)); err != nil {
				return err
			}
			return c.run(ctx, c.model.Object(p))
		})
	}
	return objects.Wait()
}

func writers(ctx context.Context) *errgroup.Group {
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(writesAtOnce)
	return group
}

// create creates a pod, without fields that a server would refuse or replace.
func (c *cluster) create(ctx context.Context, p *corev1.Pod) error {
	p.UID, p.ManagedFields = "", nil
	for i := range p.OwnerReferences {
		p.OwnerReferences[i].UID = "00000000-0000-0000-0000-000000000001"
	}
	_, err := c.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// run gives a pod its address.
func (c *cluster) run(ctx context.Context, p *corev1.Pod) error {
	p.UID, p.ManagedFields = "", nil
	_, err := c.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// warm waits until the server has read all pods from etcd, and returns their version.
func (c *cluster) warm(ctx context.Context) (version string, err error) {
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", err
	}
	return pods.ResourceVersion, nil
}

// keepChanging makes perSecond changes each second for the given time.
func (c *cluster) keepChanging(ctx context.Context, perSecond int, during time.Duration) error {
	began, before := time.Now(), c.changes
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for time.Since(began) < during {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for c.changes-before < int(time.Since(began).Seconds()*float64(perSecond)) && time.Since(began) < during {
			if err := c.change(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// change makes the next change.
func (c *cluster) change(ctx context.Context) error {
	p := c.model.Next()
	c.changes++
	o := c.model.Object(p)
	pods := c.client.CoreV1().Pods(o.Namespace)
	switch p.Stage {
	case model.Created:
		return c.create(ctx, o)
	case model.Scheduled:
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: o.Spec.NodeName},
		}, metav1.CreateOptions{})
	case model.Running:
		return c.run(ctx, o)
	case model.Terminating:
		return pods.Delete(ctx, o.Name, *metav1.NewDeleteOptions(30))
	case model.Deleted:
		return pods.Delete(ctx, o.Name, *metav1.NewDeleteOptions(0))
	}
	return fmt.Errorf("%s is at stage %d", o.Name, p.Stage)
}
