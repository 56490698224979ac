package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/test/framework"
)

// explanation is what atoll explain says for programs, as far as it is looked at here.
type explanation struct {
	Kind, Namespace, Name string
	Wanted                struct{ Pods, Ready int }
	Conditions            []metav1.Condition
	Placement             struct{ Name, Of, Split, WishedBy string }
	Clusters              []explainedCluster
	Pods                  []struct {
		Name, Cluster string
		Ready         bool
	}
	Warnings []struct{ Reason, Message string }
}

type explainedCluster struct {
	Name, Step, Meaning     string
	Replicas, ReadyReplicas int
	Shown                   struct{ Pods, Ready int }
	Heard                   struct {
		Heard  bool
		Since  *metav1.Time
		Reason string
	}
}

// explained has what atoll explain says of the app in all its forms, until check finds nothing wrong with what programs are told, and the
// text matches all of lines.
func (w *workspace) explained(what string, lines []string, check func(*explanation) string) {
	w.t.Helper()
	say := func(format ...string) (string, error) {
		return w.f.Run(append([]string{"explain", "deploy/" + w.app, "--kubeconfig=" + w.f.KubeconfigOf(w.t, "root:"+w.app)}, format...)...)
	}
	framework.Eventually(w.t, patience, "atoll explain says that "+what, func() string {
		for format, decode := range map[string]func([]byte, any) error{
			"json": json.Unmarshal,
			"yaml": func(data []byte, to any) error { return yaml.Unmarshal(data, to) },
		} {
			out, err := say("-o", format)
			if err != nil {
				return fmt.Sprintf("%s: %s %v", format, out, err)
			}
			said := &explanation{}
			if err := decode([]byte(out), said); err != nil {
				return fmt.Sprintf("%s: %v: %s", format, err, out)
			}
			if problem := check(said); problem != "" {
				return fmt.Sprintf("%s: %s: %s", format, problem, out)
			}
			if isJSON := strings.HasPrefix(out, "{"); isJSON != (format == "json") {
				return fmt.Sprintf("%s is %s", format, out)
			}
		}
		text, err := say()
		if err != nil {
			return fmt.Sprintf("%s %v", text, err)
		}
		for _, line := range lines {
			if !regexp.MustCompile(`(?m)^` + line + `\s*$`).MatchString(text) {
				return fmt.Sprintf("no line is %q:\n%s", line, text)
			}
		}
		return ""
	})
}

// at is a cluster's part of it.
func (e *explanation) at(cluster string) explainedCluster {
	for _, c := range e.Clusters {
		if c.Name == cluster {
			return c
		}
	}
	return explainedCluster{}
}

// explains: where each replica is, why there, which step each cluster is at and whether it is heard of, and what one refused.
func explains(t *testing.T, f *fleet) {
	w := f.workspace(t, "explained")
	w.place("*")
	w.apply(4, "")
	w.spread(map[string]int{"east": 2, "west": 2})
	w.rolledOut()
	there := map[string]string{} // cluster by pod, as the clusters themselves have it
	for name, c := range f.clusters {
		pods, err := c.Clientset().CoreV1().Pods(w.namespaceIn(name)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			there[p.Name] = name
		}
	}
	w.explained("all is well", []string{
		`Deployment default/explained: 4 of 4 pods ready`,
		`Placement default, of all of its namespace that has no annotations of its own, divided Even\. Wished by the annotations of namespace "default"\.`,
		`CLUSTER\s+STEP\s+PLACEMENT\s+PODS\s+HEARD`,
		`east\s+Ready\s+2/2\s+2/2\s+yes`,
		`west\s+Ready\s+2/2\s+2/2\s+yes`,
	}, func(e *explanation) string {
		if e.Kind != "Deployment" || e.Namespace != "default" || e.Name != w.app || e.Wanted.Pods != 4 || e.Wanted.Ready != 4 {
			return "it is of something else"
		}
		if p := e.Placement; p.Name != "default" || p.Of != "Namespace" || p.Split != "Even" || p.WishedBy != `the annotations of namespace "default"` {
			return "the Placement is another"
		}
		if len(e.Clusters) != 2 || len(e.Conditions) != 0 || len(e.Pods) != 4 || len(there) != 4 {
			return fmt.Sprintf("there is too much or too little of something; the pods are %v", there)
		}
		for _, name := range []string{"east", "west"} {
			c := e.at(name)
			if c.Step != "Ready" || c.Meaning != "" || c.Replicas != 2 || c.ReadyReplicas != 2 || c.Shown.Pods != 2 || c.Shown.Ready != 2 || !c.Heard.Heard || c.Heard.Since.IsZero() {
				return "something is the matter with " + name
			}
		}
		for _, p := range e.Pods {
			if !p.Ready || there[p.Name] != p.Cluster {
				return fmt.Sprintf("pod %s is in %q", p.Name, there[p.Name])
			}
		}
		return ""
	})

	const words = "the second version is not for west"
	refuseImage(t, f.clusters["west"], w.app, "registry.example/web:2", words)
	w.kubectl("set", "image", "deployment/"+w.app, "web=registry.example/web:2")
	w.explained("west refused it", []string{
		`west\s+Refused\s+.*\s+yes`,
		`Refused: the cluster would not take something\.`,
		`(Synced is False for|Warning) .*west.*` + words + `.*`,
	}, func(e *explanation) string {
		if c := e.at("west"); c.Step != "Refused" || c.Meaning == "" || !c.Heard.Heard {
			return "west has not refused it"
		}
		if c := e.at("east"); c.Step == "" || c.Step == "Refused" {
			return "something is the matter with east"
		}
		told := slices.ContainsFunc(e.Conditions, func(c metav1.Condition) bool {
			return c.Status != metav1.ConditionTrue && strings.Contains(c.Message, "west") && strings.Contains(c.Message, words)
		})
		warned := slices.ContainsFunc(e.Warnings, func(w struct{ Reason, Message string }) bool {
			return strings.Contains(w.Message, "west") && strings.Contains(w.Message, words)
		})
		if !told || !warned {
			return fmt.Sprintf("its words are in a condition: %v, in a warning: %v", told, warned)
		}
		return ""
	})
	w.kubectl("set", "image", "deployment/"+w.app, "web=registry.example/web:3")
	w.explained("all is well again", []string{`west\s+Ready\s+2/2\s+2/2\s+yes`}, func(e *explanation) string {
		if e.at("west").Step != "Ready" || e.at("east").Step != "Ready" || len(e.Conditions) != 0 {
			return "it is not"
		}
		return ""
	})
}

// refuseImage has a physical cluster take no Deployment of an app with that image, as its administrator may, and returns when it does not.
func refuseImage(t *testing.T, c *framework.Physical, app, image, words string) {
	t.Helper()
	admission := c.Clientset().AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("object.spec.template.spec.containers.all(c, c.image != %q)", image), Message: words,
			}},
		},
	}
	if _, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: app, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": app}
	refused := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app, Labels: labels}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}}},
	}}
	framework.Eventually(t, patience, "the policy is in force", func() string {
		_, err := c.Clientset().AppsV1().Deployments("default").Create(t.Context(), refused, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), words) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// explainsThatItIsAway: of a cluster that does not answer it is said since when, and what was known last.
func (w *workspace) explainsThatItIsAway(cluster string) {
	w.t.Helper()
	w.explained(cluster+" is away", []string{
		cluster + `\s+Applying\s+6/6\s+0/6\s+no, for \d+\w*: \w+`,
		`Applying: written; the cluster does not have it yet, does not answer, or is only observed\.`,
		`STEP and PLACEMENT are of all that the Placement decides for: it may be something else in the namespace\.`,
	}, func(e *explanation) string {
		c := e.at(cluster)
		if c.Step != "Applying" || c.Meaning == "" || c.ReadyReplicas != 6 || c.Shown.Pods != 6 || c.Shown.Ready != 0 {
			return "it does not say what was known last"
		}
		if c.Heard.Heard || c.Heard.Reason == "" || c.Heard.Since.IsZero() || time.Since(c.Heard.Since.Time) > 10*time.Minute {
			return "it does not say since when it is away"
		}
		return ""
	})
}
