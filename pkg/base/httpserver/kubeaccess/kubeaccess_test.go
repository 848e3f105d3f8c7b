package kubeaccess

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// api is a fake of the API server's reviews.
type api struct {
	users    map[string]string // by token
	allowed  map[string]string // paths by user
	down     bool
	reviewed int // number of tokens

	audiences map[string]string // by token
	old       bool              // does not know audiences
}

func newAPI() *api {
	return &api{
		users:   map[string]string{"reader-token": "reader", "other-token": "other"},
		allowed: map[string]string{"reader": "/metrics"},
	}
}

func (a *api) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.reviewed++
		if a.down {
			return true, nil, apierrors.NewServiceUnavailable("down")
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		user, ok := a.users[review.Spec.Token]
		audiences := slices.DeleteFunc([]string{a.audiences[review.Spec.Token]}, func(a string) bool { return !slices.Contains(review.Spec.Audiences, a) })
		ok = ok && (a.old || len(review.Spec.Audiences) == 0 || len(audiences) > 0)
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, Audiences: audiences, User: authenticationv1.UserInfo{
			Username: user, UID: "uid-" + user, Groups: []string{"readers"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}},
		}}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if a.down {
			return true, nil, apierrors.NewServiceUnavailable("down")
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		s := review.Spec
		whole := s.UID == "uid-"+s.User && fmt.Sprint(s.Groups, s.Extra) == "[readers] map[pod:[p]]" && s.ResourceAttributes == nil && s.NonResourceAttributes.Verb == "get"
		review.Status.Allowed = whole && a.allowed[s.User] == s.NonResourceAttributes.Path
		return true, review, nil
	})
	return client
}

func reviewer(client *fake.Clientset, audience string, logger logr.Logger) *Reviewer {
	return New(client.AuthenticationV1().TokenReviews(), client.AuthorizationV1().SubjectAccessReviews(), "/metrics", audience, logger)
}

// bubble runs a test of a Reviewer with a fake clock. lines collects its log.
func bubble(t *testing.T, test func(t *testing.T, a *api, r *Reviewer, lines *[]string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, lines := newAPI(), new([]string)
		logger := funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{})
		test(t, a, reviewer(a.client(), "", logger), lines)
	})
}

// want checks the answer for a token.
func want(t *testing.T, r *Reviewer, token string, want error) {
	t.Helper()
	if err := r.Authorize(t.Context(), token); !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", token, err, want)
	}
}

func TestWhoMayRead(t *testing.T) {
	bubble(t, func(t *testing.T, a *api, r *Reviewer, _ *[]string) {
		want(t, r, "reader-token", nil)
		want(t, r, "other-token", httpserver.ErrForbidden)
		want(t, r, "wrong-token", httpserver.ErrUnauthenticated)
		if err := r.Authorize(t.Context(), "other-token"); !strings.Contains(err.Error(), `user "other" may not get /metrics`) {
			t.Errorf("got %v", err)
		}
	})
}

// A token for the API server or for another service is not valid for an audience.
func TestAudience(t *testing.T) {
	a := newAPI()
	a.users = map[string]string{"ours": "reader", "another's": "reader", "server's": "reader"}
	a.audiences = map[string]string{"ours": "agents", "another's": "vault"}
	r := reviewer(a.client(), "agents", logr.Discard())
	want(t, r, "ours", nil)
	want(t, r, "another's", httpserver.ErrUnauthenticated)
	want(t, r, "server's", httpserver.ErrUnauthenticated)
	a.old = true
	want(t, r, "another's", httpserver.ErrUnauthenticated)
}

func TestAnAnswerThatAllowsIsReusedForAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, a *api, r *Reviewer, _ *[]string) {
		for range 100 {
			want(t, r, "reader-token", nil)
		}
		if a.reviewed != 1 {
			t.Errorf("%d reviews for one token at once", a.reviewed)
		}
		delete(a.users, "reader-token") // revoked
		time.Sleep(allowedFor - time.Second)
		want(t, r, "reader-token", nil)
		time.Sleep(time.Second)
		want(t, r, "reader-token", httpserver.ErrUnauthenticated)

		a.down = true
		if err := r.Authorize(t.Context(), "reader-token"); err == nil {
			t.Error("a revoked token is allowed while the API server is down")
		}
	})
}

func TestKnownReadersDoNotNeedTheAPIServerForAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, a *api, r *Reviewer, lines *[]string) {
		want(t, r, "reader-token", nil)
		a.down = true
		if err := r.Authorize(t.Context(), "other-token"); err == nil {
			t.Error("an unknown token is allowed while the API server is down")
		}
		before := a.reviewed
		for start := time.Now(); time.Since(start) < withoutServer-time.Second; time.Sleep(time.Second) {
			want(t, r, "reader-token", nil)
		}
		if n := a.reviewed - before; n > int(withoutServer/retryEvery) {
			t.Errorf("%d reviews in an hour without answer", n)
		}
		if n := len(*lines); n == 0 || n > int(withoutServer/logInterval)+1 {
			t.Errorf("%d lines in an hour without answer", n)
		}
		time.Sleep(retryEvery)
		if err := r.Authorize(t.Context(), "reader-token"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("after an hour: %v", err)
		}
		a.down = false
		want(t, r, "reader-token", nil)
	})
}

// Wrong tokens from a pod cost the API server at most two reviews a second, and legitimate
// readers are not affected.
func TestReviewsOfUnknownTokensAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, a *api, r *Reviewer, _ *[]string) {
		want(t, r, "reader-token", nil)
		for i := range 100 {
			for range 20 {
				_ = r.Authorize(t.Context(), fmt.Sprintf("wrong-%d", i))
			}
			want(t, r, "reader-token", nil)
			time.Sleep(time.Second)
		}
		if n := a.reviewed; n > 100*bounds.ReviewRate+bounds.ReviewBurst+4 {
			t.Errorf("%d reviews in 100 s", n)
		}
		for range 2 * bounds.ReviewBurst {
			_ = r.Authorize(t.Context(), "wrong")
		}
		want(t, r, "wrong", httpserver.ErrBusy)
		time.Sleep(time.Second)
		want(t, r, "wrong", httpserver.ErrUnauthenticated)
	})
}

func TestReadersAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, a *api, r *Reviewer, _ *[]string) {
		for i := range 3 * bounds.Tokens {
			token := fmt.Sprintf("reader-token-%d", i)
			a.users[token] = "reader"
			want(t, r, token, nil)
			time.Sleep(time.Second)
		}
		if len(r.readers) != bounds.Tokens {
			t.Errorf("%d readers are remembered, want %d", len(r.readers), bounds.Tokens)
		}
		before := a.reviewed
		want(t, r, fmt.Sprintf("reader-token-%d", 3*bounds.Tokens-1), nil)

		if a.reviewed != before {
			t.Error("the latest reader is forgotten")
		}
	})
}
