package clusterwatch

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

const groups = "cidrgroups"

var (
	kindCIDRGroup = compile.KindCIDRGroup.Name
	withGroups    = Config{Kinds: allKinds, Features: compile.Features{CIDRGroups: true}}
)

// denyGroup is a policy that denies what all pods send to a group.
func denyGroup(name string) *proposed.ClusterNetworkPolicy {
	p := clusterPolicy("deny-" + name)
	p.Spec = proposed.ClusterNetworkPolicySpec{Tier: v1beta1.AdminTier, Egress: []proposed.EgressRule{{
		Action: v1beta1.ClusterNetworkPolicyRuleActionDeny, To: []proposed.EgressPeer{{PeerFields: proposed.PeerFields{CIDRGroups: &proposed.CIDRGroups{Names: []string{name}}}}},
	}}}
	p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
	return p
}

// Groups are watched with the gate and a kind that may refer to them.
func TestGroupsAreWatchedWhereTheyAreNeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg     Config
		watched bool
	}{
		"gate":             {withGroups, true},
		"no gate":          {Config{Kinds: allKinds}, false},
		"no kind":          {Config{Features: withGroups.Features}, false},
		"only other kinds": {Config{Kinds: []*compile.Kind{compile.KindAdminNetworkPolicy}, Features: withGroups.Features}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(true)
				s.add(group("g"))
				h := startWith(t, s.inBubble(t), tc.cfg)
				synctest.Wait()
				if asked, known := s.requests(groups) > 0, strings.Contains(h.last(t).in, "group/g"); asked != tc.watched || known != tc.watched {
					t.Errorf("asked %v, known %v, want %v", asked, known, tc.watched)
				}
			})
		})
	}
}

// The definition of CIDRGroup comes and goes like those of policies.
func TestGroupsFollowTheirDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(clusterPolicy("q"))
		s.answer(groups, http.StatusNotFound)
		h := startWith(t, s.inBubble(t), withGroups)
		h.expect(t, "not served", "cnp/q", kindCIDRGroup, 0)
		if got := h.failures(kindCIDRGroup); got != 0 {
			t.Errorf("%v failures counted", got)
		}

		s.add(group("g"))
		s.answer(groups, http.StatusOK)
		time.Sleep(notice)
		h.expect(t, "installed", "cnp/q group/g", kindCIDRGroup, 1)

		s.answer(groups, http.StatusNotFound)
		time.Sleep(doubts * doubtPause / 2)
		h.expect(t, "perhaps removed", "cnp/q group/g", kindCIDRGroup, 0)
		time.Sleep(doubts * doubtPause)
		h.expect(t, "removed", "cnp/q", kindCIDRGroup, 0)
	})
}

// A restart uses the groups of the saved state.
func TestGroupsAreSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(true)
		g := group("g", "192.0.2.0/24")
		g.Labels, g.Annotations = map[string]string{"env": "a"}, map[string]string{"a": "b"}
		s.add(g, clusterPolicy("q"))
		cfg := withGroups
		cfg.Saved = savedIn(path, "1", allKinds)
		h := startWith(t, s.inBubble(t), cfg)
		time.Sleep(time.Minute)
		h.cancel()
		<-h.done

		s.leave(syscall.ECONNREFUSED)
		cfg.Saved = savedIn(path, "1", allKinds)
		h = startWith(t, s.inBubble(t), cfg)
		synctest.Wait()

		if got := h.last(t); got.in != "cnp/q group/g" || !got.unlisted {
			t.Errorf("published %+v, want the saved state", got)
		}
		saved := h.state().CIDRGroups
		if len(saved) != 1 || saved[0].Labels["env"] != "a" || len(saved[0].Spec.CIDRs) != 1 || saved[0].Annotations != nil {
			t.Errorf("known are %+v, want labels and networks of the group", saved)
		}
	})
}

// A rule that denies a group denies every address until groups may be read, and all else is
// enforced.
func TestAllButGroupsIsEnforcedWithoutTheRightToReadThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(namespace("x"), node("n"), pod("web", "10.0.0.1"), denyAll("isolation"), denyGroup("g"), group("g", "192.0.2.0/24"))
		s.answer(groups, http.StatusForbidden)
		h := startWith(t, s.inBubble(t), withGroups)
		time.Sleep(rightsPatience - time.Second)
		if got := h.all(); len(got) > 0 {
			t.Errorf("before the patience is over: %v", got)
		}

		time.Sleep(2 * rightsPatience)
		h.wantVerdicts(t, "without the right", map[[2]string]bool{
			{"192.0.2.9", "10.0.0.1"}: false, {"10.0.0.1", "192.0.2.1"}: false, {"10.0.0.1", "198.51.100.1"}: false, {"192.0.2.9", "192.0.2.5"}: true,
		})
		if err := h.Healthy(); err == nil || !strings.Contains(err.Error(), "not listed yet: CIDRGroup") {
			t.Errorf("without the right: %v", err)
		}

		s.answer(groups, http.StatusOK)
		time.Sleep(time.Minute)
		h.wantVerdicts(t, "with the right", map[[2]string]bool{
			{"192.0.2.9", "10.0.0.1"}: false, {"10.0.0.1", "192.0.2.1"}: false, {"10.0.0.1", "198.51.100.1"}: true,
		})
		if err := h.Healthy(); err != nil {
			t.Errorf("with the right: %v", err)
		}
	})
}
