package agents

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

const (
	// reviewedFor is how long a token is believed without another review: 5,000 agents cost eight
	// reviews a second.
	reviewedFor = 10 * time.Minute
	// reviewRate and reviewBurst limit the reviews, per second and at once. An agent that sends
	// another token each time costs one review for each question.
	reviewRate  = 50
	reviewBurst = 100
	// podUID is what the API server adds to the user of a token that is bound to a pod.
	podUID = "authentication.kubernetes.io/pod-uid"
	// maxUser bounds the name of a user in an error.
	maxUser = 128
)

// reviewer asks the API server whose tokens agents send.
type reviewer struct {
	client  kubernetes.Interface
	user    string // of the agents
	limiter *rate.Limiter

	mu       sync.Mutex
	believed map[types.UID]belief // by pod
}

// belief is a token that the API server has confirmed.
type belief struct {
	token [sha256.Size]byte // its hash
	until time.Time
}

func newReviewer(client kubernetes.Interface, namespace, serviceAccount string) *reviewer {
	return &reviewer{
		client:   client,
		user:     "system:serviceaccount:" + namespace + ":" + serviceAccount,
		limiter:  rate.NewLimiter(reviewRate, reviewBurst),
		believed: make(map[types.UID]belief),
	}
}

// check returns nil if a token proves that it comes from a pod.
func (r *reviewer) check(ctx context.Context, pod *corev1.Pod, token string) error {
	if token == "" {
		return errors.New("it sends no token: is it an agent of this version?")
	}
	hash := sha256.Sum256([]byte(token))
	if r.believes(pod.UID, hash) {
		return nil
	}
	if err := r.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("too many tokens are to be reviewed: %w", err)
	}
	review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{writerkey.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("review its token: %w", err)
	}
	if err := r.belongs(pod, &review.Status); err != nil {
		return err
	}
	r.believe(pod.UID, hash)
	return nil
}

// belongs returns nil if a reviewed token is that of the agent that runs in a pod.
func (r *reviewer) belongs(pod *corev1.Pod, status *authenticationv1.TokenReviewStatus) error {
	switch uids := status.User.Extra[podUID]; {
	// An API server that ignores audiences does not return the requested one.
	case !status.Authenticated || !slices.Contains(status.Audiences, writerkey.Audience):
		return errors.New("its token is not valid for the status writer")
	case status.User.Username != r.user:
		name := status.User.Username
		return fmt.Errorf("its token is of user %q, not %q", printable.Text(name[:min(len(name), maxUser)]), r.user)
	case !slices.Equal(uids, authenticationv1.ExtraValue{string(pod.UID)}):
		return errors.New("its token is of another pod")
	}
	return nil
}

func (r *reviewer) believes(pod types.UID, hash [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.believed[pod]
	return ok && known.token == hash && time.Now().Before(known.until)
}

// believe adds a token, and forgets those that have to be reviewed again.
func (r *reviewer) believe(pod types.UID, hash [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.believed, func(_ types.UID, b belief) bool { return !now.Before(b.until) })
	r.believed[pod] = belief{hash, now.Add(reviewedFor)}
}
