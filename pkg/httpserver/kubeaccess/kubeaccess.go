// Package kubeaccess asks the API server who may read the metrics: a TokenReview says whose
// a bearer token is, and a SubjectAccessReview whether the user may get the path. It is own
// code because the library of the API server (k8s.io/apiserver) has neither a bound on
// reviews of unknown tokens, which any pod can send, nor does it serve known clients while
// the API server is away.
package kubeaccess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
)

const (
	// allowedFor is how long an answer of the API server that allows is reused.
	allowedFor = time.Minute
	// withoutServer is how long it is reused at most while the API server does not
	// answer, so that agents can be watched during an outage, and retryEvery how often
	// the API server is asked again.
	withoutServer = time.Hour
	retryEvery    = 10 * time.Second
	// unknownRate limits the reviews per second of tokens that were not allowed before,
	// and unknownBurst those at once.
	unknownRate  = 2
	unknownBurst = 10
	// maxReaders are remembered, those that were allowed last.
	maxReaders = 32
	// reviewTimeout bounds both requests of a review.
	reviewTimeout = 4 * time.Second
	// logInterval is the least time between two log lines of reviews that fail.
	logInterval = time.Minute
)

// Reviewer decides who may read a path. Its methods may be called from any goroutine.
type Reviewer struct {
	client   kubernetes.Interface
	path     string
	audience string
	logger   klog.Logger

	unknown *rate.Limiter
	failed  rate.Sometimes

	mu      sync.Mutex
	readers map[[sha256.Size]byte]reader // by the hash of the token
}

// reader is a token that the API server has allowed.
type reader struct {
	allowed time.Time // when it was allowed last
	until   time.Time // when it is reviewed again
}

// New returns a Reviewer for a path, such as "/metrics", of tokens that are for an audience,
// with "" for the API server. The client needs the right to create tokenreviews and
// subjectaccessreviews.
func New(client kubernetes.Interface, path, audience string, logger klog.Logger) *Reviewer {
	return &Reviewer{
		client:   client,
		path:     path,
		audience: audience,
		logger:   logger,
		unknown:  rate.NewLimiter(unknownRate, unknownBurst),
		failed:   rate.Sometimes{Interval: logInterval},
		readers:  make(map[[sha256.Size]byte]reader),
	}
}

// Authorize returns nil if who has the token may get the path, and otherwise an error as
// httpserver.Access does.
func (r *Reviewer) Authorize(ctx context.Context, token string) error {
	key, now := sha256.Sum256([]byte(token)), time.Now()
	known, ok := r.reader(key)
	switch {
	case ok && now.Before(known.until):
		return nil
	case !ok && !r.unknown.Allow():
		return httpserver.ErrBusy
	}
	denial, err := r.review(ctx, token)
	switch {
	case denial != nil:
		r.forget(key)
		return denial
	case err == nil:
		r.remember(key, reader{allowed: now, until: now.Add(allowedFor)})
		return nil
	}
	r.failed.Do(func() { r.logger.Error(err, "Access to the metrics cannot be decided", "path", r.path) })
	if ok && now.Sub(known.allowed) < withoutServer {
		r.remember(key, reader{allowed: known.allowed, until: now.Add(retryEvery)})
		return nil
	}
	return err
}

// review asks the API server. It returns a denial, an error if there was no answer, or
// neither.
func (r *Reviewer) review(ctx context.Context, token string) (denial, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := authenticationv1.TokenReviewSpec{Token: token}
	if r.audience != "" {
		asked.Audiences = []string{r.audience}
	}
	whose, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: asked}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review the token: %w", err)
	}
	// A server that ignores audiences does not name the one that was asked for.
	if !whose.Status.Authenticated || r.audience != "" && !slices.Contains(whose.Status.Audiences, r.audience) {
		return httpserver.ErrUnauthenticated, nil
	}
	user := whose.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review the rights of %s: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return fmt.Errorf("%w: user %q may not get %s", httpserver.ErrForbidden, user.Username, r.path), nil
	}
	return nil, nil
}

func (r *Reviewer) reader(key [sha256.Size]byte) (reader, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.readers[key]
	return known, ok
}

func (r *Reviewer) forget(key [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, key)
}

// remember adds a reader, in the place of the one that was allowed longest ago if there are
// too many.
func (r *Reviewer) remember(key [sha256.Size]byte, now reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers[key] = now
	if len(r.readers) > maxReaders {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.readers)), func(a, b [sha256.Size]byte) int {
			return cmp.Compare(r.readers[a].allowed.UnixNano(), r.readers[b].allowed.UnixNano())
		})
		delete(r.readers, oldest)
	}
}
