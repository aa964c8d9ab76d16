//! PodDisruptionBudgets, so that a drain on the host keeps to them too.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | not passed on: see `metadata` |
//! | `selector` | narrowed to the tenant and the namespace; its size is limited, see [`sizes`]. A budget on the host that is larger is withdrawn |
//! | `minAvailable` as a number | copied |
//! | `minAvailable` in percent, `maxUnavailable` | become the number of pods that the tenant's own controller wants healthy: host pods have no owners whose replicas could be counted. Before it has counted, more pods than there can be are wanted, so that nothing may be disrupted |
//! | `unhealthyPodEvictionPolicy` | copied |
//! | anything else | denied by name |
//! | status | stays: the tenant's disruption controller writes it from the tenant's pods, and evictions in the tenant go by it. Two writers would conflict |

use crate::{
    model::{
        Cache, DeniedField, DesiredState, HostNamespace, Kind, ToHost, Translated, WhenDenied, json,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        metadata::{self, AnnotationRules},
        pod_selector::scoped,
        sizes,
    },
};
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets");

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Budgets).watch_host(
    HostNamespace::Workloads,
    WatchSpec::synced(RESOURCE).trimmed(with_selector),
);

const SPEC: Fields = &[
    ("maxUnavailable", Rule::Rewrite),
    ("minAvailable", Rule::Rewrite),
    ("selector", Rule::Rewrite),
    ("unhealthyPodEvictionPolicy", Rule::Copy),
];

/// More pods than can be healthy, so that none may be disrupted. `maxUnavailable: 0` says the same, but for it the host looks for the owners of
/// the pods, which are in the tenant, and writes an Event with the whole selector each time it finds none.
const ALL_PODS: i32 = i32::MAX;

/// How API servers say that a budget has two numbers.
const BOTH_NUMBERS: &str = "minAvailable and maxUnavailable cannot be both set";

struct Budgets;

/// Trims a budget of the host to its metadata, and to what [`Budgets::when_denied`] reads.
fn with_selector(budget: &mut Value) {
    let selector = budget
        .pointer_mut("/spec/selector")
        .map(Value::take)
        .unwrap_or_default();
    metadata::only(budget);
    json::set(budget, &["spec", "selector"], selector);
}

/// Pods that have to be healthy, as the tenant's controller has counted them for the current spec. Where it expects no pods, it allows no
/// disruption, whatever number it writes: the budget selects none, or those that it selects have no owner whose number it knows.
fn counted(budget: &Value) -> Option<&Value> {
    let observed = json::at(budget, &["status", "observedGeneration"])?;
    let is_current = Some(observed) == json::at(budget, &["metadata", "generation"]);
    let expects_none = json::at(budget, &["status", "expectedPods"]).is_some_and(|pods| pods == 0);
    (is_current && !expects_none)
        .then(|| json::at(budget, &["status", "desiredHealthy"]))
        .flatten()
}

impl ToHost for Budgets {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, _budget: &Value) -> DesiredState {
        DesiredState::Sync
    }

    fn translate(&self, cache: &Cache, name: &Name, budget: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let source = &budget["spec"];
        let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
        // A budget without a selector selects no pod, on the host as well.
        if let Some(selector) = source.get("selector").filter(|selector| !selector.is_null()) {
            let selector = scoped(cache, selector, Some(&[&*name.namespace]));
            spec.insert("selector".into(), selector);
        }
        let wanted = source.get("minAvailable").filter(|number| number.is_number());
        let healthy = wanted.or_else(|| counted(budget)).cloned();
        spec.insert("minAvailable".into(), healthy.unwrap_or_else(|| ALL_PODS.into()));
        let annotations = metadata::annotations(budget, &AnnotationRules::default(), &mut issues);
        let metadata = json!({"annotations": annotations});
        let object = json!({"metadata": metadata, "spec": spec});
        sizes::check(sizes::DISRUPTION_BUDGET, budget, &object, &mut issues);
        issues.into_result(object)
    }

    fn must_replace_after(&self, refusal: &str) -> bool {
        // Somebody else has set the other number, which stays in an apply.
        refusal.contains(BOTH_NUMBERS)
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _budget: &Value, host: &Value) -> WhenDenied {
        // It protects the tenant's own pods. One that is older than a limit costs other tenants as much as a new one would.
        let mut issues = FieldIssues::default();
        sizes::check_on_host(sizes::DISRUPTION_BUDGET, host, &mut issues);
        if issues.denied.is_empty() {
            WhenDenied::Keep
        } else {
            WhenDenied::Withdraw
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kinds::schemas, model::tenant::test_tenant, registry, translation::sizes::count_bytes};
    use serde_json::Map;

    /// The host budget of one in the tenant, or the fields that are denied.
    fn translate(budget: &Value) -> Result<Value, Vec<DeniedField>> {
        let cache = registry::new_cache(test_tenant());
        let translated = Budgets.translate(&cache, &Name::new("shop", "web"), budget)?;
        Ok(translated.object)
    }

    fn spec(budget: &Value) -> Value {
        translate(budget).unwrap()["spec"].take()
    }

    /// A selector with this number of labels.
    fn labels(count: usize) -> Value {
        let labels: Map<String, Value> = (0..count).map(|number| (format!("l{number}"), "a".into())).collect();
        json!({"matchLabels": labels})
    }

    /// A selector with one expression, which has this number of values.
    fn values(count: usize) -> Value {
        let values: Vec<String> = (0..count).map(|number| format!("v{number}")).collect();
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]})
    }

    fn with_selector_of(selector: &Value) -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}})
    }

    #[test]
    fn a_number_is_copied_and_the_selector_narrowed() {
        let budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 2,
            "selector": {"matchLabels": {"app": "web"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}});
        insta::assert_yaml_snapshot!(spec(&budget));
    }

    #[test]
    fn percentages_become_the_number_that_the_tenants_controller_counted() {
        let mut budget = json!({"metadata": {"generation": 2}, "spec": {"maxUnavailable": "25%", "selector": {}},
            "status": {"observedGeneration": 1, "desiredHealthy": 3}});
        assert_eq!(
            spec(&budget)["minAvailable"],
            i32::MAX,
            "healthy pods are not counted yet, so no pod may be disrupted"
        );
        budget["status"]["observedGeneration"] = 2.into();
        assert_eq!(spec(&budget)["minAvailable"], 3);
        budget["spec"] = json!({"minAvailable": "50%", "selector": {}});
        assert_eq!(spec(&budget)["minAvailable"], 3);
        budget["status"] = json!({"observedGeneration": 2, "desiredHealthy": 0, "expectedPods": 0});
        assert_eq!(
            spec(&budget)["minAvailable"],
            i32::MAX,
            "pods without an owner, none of which may be disrupted in the tenant"
        );
        budget["status"]["expectedPods"] = 4.into();
        assert_eq!(spec(&budget)["minAvailable"], 0);
    }

    #[test]
    fn the_host_looks_for_no_owners_of_pods() {
        let counted = json!({"observedGeneration": 1, "desiredHealthy": 0});
        for limits in [
            json!({"maxUnavailable": 0}),
            json!({"maxUnavailable": 1}),
            json!({"maxUnavailable": "10%"}),
            json!({"minAvailable": "10%"}),
            json!({"minAvailable": 1}),
            json!({"minAvailable": null, "maxUnavailable": null}),
            json!({}),
        ] {
            for status in [&Value::Null, &json!({}), &counted] {
                let budget = json!({"metadata": {"generation": 1}, "spec": limits, "status": status});
                let spec = spec(&budget);
                assert!(spec["minAvailable"].is_i64(), "{budget}: {spec}");
                assert_eq!(spec.get("maxUnavailable"), None, "{budget}");
            }
        }
    }

    #[test]
    fn a_selector_of_more_than_ten_entries_is_denied() {
        // Six labels, an expression and its values.
        let both = |count: usize| {
            let mut selector = labels(6);
            selector["matchExpressions"] = values(count - 7)["matchExpressions"].take();
            selector
        };
        for (most, more) in [(labels(10), labels(11)), (values(9), values(10)), (both(10), both(11))] {
            assert!(translate(&with_selector_of(&most)).is_ok(), "{most}");
            let denied = translate(&with_selector_of(&more)).unwrap_err();
            assert_eq!((denied.len(), &*denied[0].field), (1, "spec.selector"));
            let why = &denied[0].why;
            assert!(
                why.starts_with("there are 11, and one object may have at most 10: "),
                "{why}"
            );
            assert!(why.ends_with(". Select the pods by a label of their own"), "{why}");
        }
    }

    #[test]
    fn the_largest_selector_becomes_one_that_is_as_large_as_the_host_takes() {
        let limit = sizes::DISRUPTION_BUDGET[0];
        for most in [labels(limit.in_tenant), values(limit.in_tenant - 1)] {
            let host = translate(&with_selector_of(&most)).unwrap();
            assert_eq!(limit.measure.count(&host), limit.on_host, "{host}");
        }
    }

    /// docs/guides/host-limits.md names both.
    #[test]
    fn selectors_of_charts_and_operators_fit() {
        let chart = json!({"matchLabels": {"app.kubernetes.io/name": "a", "app.kubernetes.io/instance": "b",
            "app.kubernetes.io/component": "c", "app.kubernetes.io/part-of": "d", "app.kubernetes.io/version": "1"}});
        let names: Vec<String> = (0..7).map(|number| format!("logs-es-data-{number}")).collect();
        let elasticsearch = json!({"matchExpressions": [
            {"key": "elasticsearch.k8s.elastic.co/cluster-name", "operator": "In", "values": ["logs"]},
            {"key": "elasticsearch.k8s.elastic.co/statefulset-name", "operator": "In", "values": names}]});
        for selector in [chart, elasticsearch] {
            assert!(translate(&with_selector_of(&selector)).is_ok(), "{selector}");
        }
    }

    #[test]
    fn the_largest_budget_has_few_bytes_on_the_host() {
        let label = |number: usize| {
            let key = format!("{}/{number:0>63}", "d".repeat(253));
            (key, Value::from("v".repeat(63)))
        };
        let labels: Map<String, Value> = (0..10).map(label).collect();
        let host = translate(&with_selector_of(&json!({"matchLabels": labels}))).unwrap();
        assert_eq!(
            host["spec"]["selector"]["matchLabels"].as_object().map(Map::len),
            Some(12)
        );
        assert!(count_bytes(&host) < 2048, "{host}");
    }

    #[test]
    fn a_budget_that_is_too_large_for_the_host_is_withdrawn_when_it_is_denied() {
        let cache = registry::new_cache(test_tenant());
        let (name, denied) = (Name::new("shop", "web"), with_selector_of(&values(499)));
        let when_denied = |mut host: Value| {
            // As the store keeps it.
            with_selector(&mut host);
            Budgets.when_denied(&cache, &name, &denied, &host)
        };
        for (most, more) in [(labels(12), labels(13)), (values(11), values(12))] {
            assert_eq!(when_denied(with_selector_of(&most)), WhenDenied::Keep, "{most}");
            assert_eq!(when_denied(with_selector_of(&more)), WhenDenied::Withdraw, "{more}");
        }
        assert_eq!(
            when_denied(json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1}})),
            WhenDenied::Keep,
            "it selects nothing"
        );
    }

    #[test]
    fn of_a_budget_on_the_host_metadata_and_selector_are_kept() {
        let mut budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": labels(1)},
            "status": {"currentHealthy": 1}});
        with_selector(&mut budget);
        assert_eq!(
            budget,
            json!({"metadata": {"name": "web"}, "spec": {"selector": labels(1)}})
        );
    }

    #[test]
    fn an_empty_selector_selects_the_namespace_and_a_missing_one_nothing() {
        let labels = spec(&json!({"spec": {"minAvailable": 1, "selector": {}}}))["selector"]["matchLabels"].take();
        assert_eq!(
            labels,
            json!({"berth.dev/tenant": "vision-aaaaaaaaaaaaa", "berth.dev/namespace": "shop"})
        );
        assert_eq!(spec(&json!({"spec": {"minAvailable": 1}})).get("selector"), None);
    }

    #[test]
    fn a_budget_to_which_somebody_else_has_added_a_number_is_made_again() {
        let refusal = "PodDisruptionBudget \"a-x\" is invalid: spec: Invalid value: {\"minAvailable\":1,\"maxUnavailable\":0}: \
                       minAvailable and maxUnavailable cannot be both set";
        assert!(Budgets.must_replace_after(refusal));
        assert!(!Budgets.must_replace_after("poddisruptionbudgets.policy \"a-x\" is forbidden"));
    }

    #[test]
    fn every_field_of_every_version_has_a_rule() {
        schemas::check(&[
            ("LabelSelector", schemas::LABEL_SELECTOR),
            ("LabelSelectorRequirement", schemas::REQUIREMENT),
            ("PodDisruptionBudgetSpec", SPEC),
        ]);
    }
}
