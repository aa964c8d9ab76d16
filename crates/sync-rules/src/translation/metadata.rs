//! Labels and annotations, for every kind.
//!
//! | key | rule |
//! |---|---|
//! | `berth.dev/…` and subdomains | Berth's own, never copied; except annotations under `simulation.berth.dev/`, which only simulated kubelets read. Those under `scheduling.berth.dev/` are read, see `pod::gang` |
//! | labels of schedulers and queues | not copied: on the host only the platform sets them; in the tenant they keep their meaning |
//! | labels of pods | carried under other keys, see [`pod_labels`](super::pod_labels) |
//! | labels of Services, Ingresses, routes and further kinds that the class lists | copied |
//! | all other labels | not copied: programs of the host select objects by them, or take them for orders, and nothing of the tenant reads them there |
//! | annotations that every class allows, and those that the class lists | copied |
//! | annotations that are known to act on a host | denied, or left out with an Event, see [`host_annotations`](super::host_annotations) |
//! | all other annotations | not copied: the tenant's own tools read them |

use super::{
    fields::FieldIssues,
    host_annotations::{DENIED, HostAnnotation, IGNORED, LOAD_BALANCERS},
};
use crate::model::json;
use berth_api::{
    labels::{SIMULATION, is_reserved},
    pod_labels,
    sync_policy::lists_key,
};
use serde_json::{Map, Value};

/// Domains whose labels and annotations steer schedulers and queues of the host.
const SCHEDULER_DOMAINS: &[&str] = &[
    "kai.scheduler",
    "kueue.x-k8s.io",
    "run.ai",
    "runai",
    "scheduling.k8s.io",
    "scheduling.run.ai",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
    "volcano.sh",
];

/// Annotations of host objects that repeat the object itself.
const NOT_MIRRORED: &[&str] = &["kubectl.kubernetes.io/last-applied-configuration"];

/// Whether a key belongs to a domain or one below it.
pub fn in_domain(key: &str, domain: &str) -> bool {
    let is_below = |name: &str| {
        name.strip_suffix(domain)
            .is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    };
    match key.split_once('/') {
        Some((prefix, _)) => key == domain || is_below(prefix),
        // Container runtimes use names without a slash: `io.kubernetes.cri-o.Devices`, `cpu-quota.crio.io`.
        None => is_below(key) || key.strip_prefix(domain).is_some_and(|rest| rest.starts_with('.')),
    }
}

fn is_schedulers(key: &str) -> bool {
    SCHEDULER_DOMAINS.iter().any(|domain| in_domain(key, domain))
}

/// Trims a host object of which only its existence and origin matter.
pub fn only(object: &mut Value) {
    *object = json::object([("metadata", take(object, "metadata"))]);
}

/// Trims a host object of which only its origin and its status matter.
pub fn with_status(object: &mut Value) {
    let (metadata, status) = (take(object, "metadata"), take(object, "status"));
    *object = json::object([("metadata", metadata), ("status", status)]);
}

/// Trims a host object with `trim`, and keeps which of these fields its spec has: what they contain does not matter.
pub fn with_fields_of_spec(object: &mut Value, fields: &[&str], trim: fn(&mut Value)) {
    let is_set = |field: &&&str| object["spec"].get(**field).is_some_and(|value| !value.is_null());
    let marks: Map<String, Value> = { fields.iter().filter(is_set) }
        .map(|field| ((*field).to_owned(), true.into()))
        .collect();
    trim(object);
    if !marks.is_empty() {
        object["spec"] = marks.into();
    }
}

fn take(object: &mut Value, field: &str) -> Value {
    object.get_mut(field).map(Value::take).unwrap_or_default()
}

/// Removes kubectl's annotation, which is as long as the object itself.
pub fn without_last_applied(object: &mut Value) {
    let annotations = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Labels of the host object: those with a key of `always`, and those that the class lists.
pub fn labels(object: &Value, always: &[&str], listed: &[String]) -> Map<String, Value> {
    let is_copied = |key: &str| {
        let is_listed = lists_key(listed, key) && !is_reserved(key) && !is_schedulers(key);
        is_listed || always.contains(&key)
    };
    json::strings(object, &["metadata", "labels"])
        .into_iter()
        .filter(|(key, _)| is_copied(key))
        .map(|(key, value)| (key, value.into()))
        .collect()
}

/// Labels and annotations of the host object `live` that are not Berth's own, for a write that must not change them: one that is taken away may be what
/// closes the object.
pub fn unchanged(live: &Value) -> Value {
    let of_others = |map: &str| -> Value {
        let entries = json::strings(live, &["metadata", map]).into_iter();
        let entries = entries.filter(|(key, _)| !is_reserved(key));
        entries.map(|(key, value)| (key, Value::from(value))).collect()
    };
    json::object([
        ("labels", of_others("labels")),
        ("annotations", of_others("annotations")),
    ])
}

/// What happens to an object with an annotation that acts on the host and is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// The object is denied.
    Denied,
    /// The annotation is left out, and an Event says so.
    Ignored,
}

/// Which annotations of a kind reach the host. By default none.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnnotationRules<'a> {
    /// Keys that every class allows.
    pub always: &'a [&'a str],
    /// What the class lists: keys, or `domain/*`.
    pub listed: &'a [String],
    /// The field of the class that lists them.
    pub class_field: Option<&'a str>,
    /// What happens to settings of load balancers; none if the kind has no load balancers.
    pub load_balancers: Option<Without>,
}

impl AnnotationRules<'_> {
    fn allow(&self, key: &str) -> bool {
        self.always.contains(&key) || lists_key(self.listed, key)
    }

    /// What happens without an annotation that is not allowed, and why it is not; `None` if nothing on a host reads it.
    fn consequence(&self, key: &str) -> Option<(Without, &'static str)> {
        let find = |table: &'static [HostAnnotation]| table.iter().find(|row| in_domain(key, row.key));
        let of_load_balancers = self
            .load_balancers
            .and_then(|without| Some((without, find(LOAD_BALANCERS)?.why)));
        of_load_balancers
            .or_else(|| Some((Without::Denied, find(DENIED)?.why)))
            .or_else(|| Some((Without::Ignored, find(IGNORED)?.why)))
    }
}

/// Annotations of the host object. Those that would act on the host and are not allowed are added to `issues`.
pub fn annotations(object: &Value, rules: &AnnotationRules<'_>, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = Map::new();
    for (key, value) in json::strings(object, &["metadata", "annotations"]) {
        if is_reserved(&key) {
            if key.starts_with(SIMULATION) {
                copied.insert(key, value.into());
            }
        } else if rules.allow(&key) {
            copied.insert(key, value.into());
        } else if let Some((without, why)) = rules.consequence(&key) {
            let why = match rules.class_field {
                Some(field) => format!("{why} (a class can list the key in {field})"),
                None => why.to_owned(),
            };
            let field = format!("metadata.annotations[{key}]");
            match without {
                Without::Denied => issues.deny(field, why),
                Without::Ignored => issues.ignore(field, why),
            }
        }
    }
    copied
}

/// Labels of a host object that its mirror in the tenant has: not Berth's, and none of queues and schedulers.
pub fn mirrored_labels(host: &Value) -> Map<String, Value> {
    let is_mirrored = |key: &str| !is_reserved(key) && !is_schedulers(key) && !pod_labels::BOUND.contains(&key);
    json::strings(host, &["metadata", "labels"])
        .into_iter()
        .filter(|(key, _)| is_mirrored(key))
        .map(|(key, value)| (key, value.into()))
        .collect()
}

/// Annotations of a host object that its mirror in the tenant has: not Berth's, and none that is for programs of the host.
pub fn mirrored_annotations(host: &Value) -> Map<String, Value> {
    let is_hosts = |key: &str| {
        let tables = [DENIED, LOAD_BALANCERS, IGNORED].into_iter().flatten();
        let mut domains = tables.map(|row| row.key).chain(NOT_MIRRORED.iter().copied());
        is_reserved(key) || is_schedulers(key) || domains.any(|domain| in_domain(key, domain))
    };
    json::strings(host, &["metadata", "annotations"])
        .into_iter()
        .filter(|(key, _)| !is_hosts(key))
        .map(|(key, value)| (key, value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeniedField;
    use proptest::prelude::*;
    use serde_json::json;

    const POD: AnnotationRules<'static> = AnnotationRules {
        always: &["kubernetes.io/egress-bandwidth"],
        listed: &[],
        class_field: Some("sync.pods.annotations"),
        load_balancers: None,
    };

    fn annotated(keys: &[&str]) -> Value {
        let annotations: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), "v".into())).collect();
        json!({"metadata": {"annotations": annotations}})
    }

    /// Keys that are copied, denied and left out with an Event.
    fn sorted_out(keys: &[&str], rules: &AnnotationRules<'_>) -> [Vec<String>; 3] {
        let mut issues = FieldIssues::default();
        let copied = annotations(&annotated(keys), rules, &mut issues);
        let key_of = |issue: &DeniedField| {
            let key = issue.field.strip_prefix("metadata.annotations[").unwrap();
            key.strip_suffix(']').unwrap().to_owned()
        };
        [
            copied.keys().cloned().collect(),
            issues.denied.iter().map(key_of).collect(),
            issues.ignored.iter().map(key_of).collect(),
        ]
    }

    #[test]
    fn only_labels_on_the_list_are_copied() {
        let object = json!({"metadata": {"labels": {
            "app": "a", "grafana_dashboard": "1", "berth.dev/tenant": "other", "kueue.x-k8s.io/queue-name": "q",
            "pool.example.com/name": "p", "service.kubernetes.io/headless": "", "team": "t"
        }}});
        let copied = |always: &[&str], listed: &[&str]| {
            let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
            labels(&object, always, &listed)
                .into_iter()
                .map(|(key, _)| key)
                .collect::<Vec<_>>()
        };
        assert_eq!(copied(&[], &[]), [""; 0]);
        assert_eq!(
            copied(&["service.kubernetes.io/headless"], &["team", "pool.example.com/*"]),
            ["pool.example.com/name", "service.kubernetes.io/headless", "team"]
        );
        assert_eq!(copied(&[], &["berth.dev/*", "kueue.x-k8s.io/*"]), [""; 0]);
    }

    #[test]
    fn mirrors_have_no_labels_of_berth_and_of_queues() {
        let host = json!({"metadata": {"labels": {"app": "a", "berth.dev/tenant": "t", "kueue.x-k8s.io/queue-name": "q",
            "topology.kubernetes.io/zone": "z"}}});
        assert_eq!(Value::Object(mirrored_labels(&host)), json!({"app": "a"}));
    }

    #[test]
    fn only_annotations_on_the_list_are_copied() {
        let keys = [
            "note",
            "simulation.berth.dev/run-for",
            "berth.dev/applied-hash",
            "kubectl.kubernetes.io/last-applied-configuration",
            "kubectl.kubernetes.io/default-container",
            "meta.helm.sh/release-name",
            "checksum/config",
            "prometheus.io/scrape",
            "container.apparmor.security.beta.kubernetes.io/c",
            "kueue.x-k8s.io/pod-group-total-count",
            "kubernetes.io/egress-bandwidth",
            // Keys of annotations may have upper case; nothing on the host reads these.
            "Berth.dev/tenant",
            "K8S.v1.cni.cncf.io/networks",
        ];
        let copied = ["kubernetes.io/egress-bandwidth", "simulation.berth.dev/run-for"];
        assert_eq!(
            sorted_out(&keys, &POD),
            [copied.map(ToOwned::to_owned).to_vec(), vec![], vec![]]
        );
    }

    #[test]
    fn of_very_many_annotations_few_are_described() {
        let keys = |domain: &str| {
            (0..100_000)
                .map(|number| format!("{domain}/{number}"))
                .collect::<Vec<_>>()
        };
        let keys = [keys("cdi.k8s.io"), keys("velero.io")].concat();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut issues = FieldIssues::default();
        assert!(annotations(&annotated(&keys), &POD, &mut issues).is_empty());
        let bytes = |issue: &DeniedField| issue.field.capacity() + issue.why.capacity();
        for issues in [issues.denied, issues.ignored] {
            assert_eq!(issues.len(), 100_000);
            assert!(issues.iter().map(bytes).sum::<usize>() < 100_000);
        }
    }

    #[test]
    fn what_asks_the_host_for_more_is_denied() {
        let keys = [
            "cdi.k8s.io/vendor",
            "cni.projectcalico.org/ipAddrs",
            "cpu-quota.crio.io",
            "dev.gvisor.spec.mount.share.type",
            "devices.noderesource.dev",
            "devices.nri.io/container.c",
            "gpu-fraction",
            "iam.amazonaws.com/role",
            "io.katacontainers.config.hypervisor.kernel_params",
            "io.kubernetes.cri-o.Devices",
            "io.kubernetes.cri.untrusted-workload",
            "ipam.cilium.io/ip-pool",
            "k8s.v1.cni.cncf.io/networks",
            "kubernetes.io/config.mirror",
            "org.systemd.property.ExecStart",
            "run.oci.handler",
            "v1.multus-cni.io/default-network",
        ];
        let denied = keys.map(ToOwned::to_owned).to_vec();
        assert_eq!(sorted_out(&keys, &POD), [vec![], denied.clone(), vec![]]);
        assert_eq!(sorted_out(&keys, &AnnotationRules::default()), [vec![], denied, vec![]]);
        let mut issues = FieldIssues::default();
        annotations(&annotated(&["run.oci.handler"]), &POD, &mut issues);
        assert_eq!(
            issues.denied[0].to_string(),
            "metadata.annotations[run.oci.handler]: the container runtime is the platform's (a class can list the key in \
             sync.pods.annotations)"
        );
    }

    #[test]
    fn what_asks_for_less_or_can_be_done_in_the_tenant_is_left_out_with_an_event() {
        let keys = [
            "ad.datadoghq.com/c.checks",
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            "external-dns.alpha.kubernetes.io/hostname",
            "karpenter.sh/do-not-disrupt",
            "linkerd.io/inject",
            "pre.hook.backup.velero.io/command",
            "sidecar.istio.io/inject",
            "vault.hashicorp.com/agent-inject",
        ];
        let ignored = keys.map(ToOwned::to_owned).to_vec();
        assert_eq!(sorted_out(&keys, &POD), [vec![], vec![], ignored]);
    }

    #[test]
    fn settings_of_load_balancers_count_where_there_is_one() {
        let keys = [
            "cloud.google.com/load-balancer-type",
            "lbipam.cilium.io/ips",
            "metallb.io/loadBalancerIPs",
            "service.beta.kubernetes.io/aws-load-balancer-internal",
        ];
        let all = keys.map(ToOwned::to_owned).to_vec();
        let of = |without| AnnotationRules {
            load_balancers: Some(without),
            ..AnnotationRules::default()
        };
        assert_eq!(sorted_out(&keys, &of(Without::Denied)), [vec![], all.clone(), vec![]]);
        assert_eq!(sorted_out(&keys, &of(Without::Ignored)), [vec![], vec![], all]);
    }

    #[test]
    fn a_class_adds_keys_and_domains() {
        let listed = [
            "karpenter.sh/do-not-disrupt",
            "v1.multus-cni.io/*",
            "berth.dev/*",
            "note",
        ]
        .map(ToOwned::to_owned);
        let rules = AnnotationRules { listed: &listed, ..POD };
        let keys = [
            "berth.dev/tenant",
            "karpenter.sh/do-not-consolidate",
            "karpenter.sh/do-not-disrupt",
            "note",
            "sub.v1.multus-cni.io/default-network",
            "v1.multus-cni.io/default-network",
        ];
        let copied = [
            "karpenter.sh/do-not-disrupt",
            "note",
            "v1.multus-cni.io/default-network",
        ];
        assert_eq!(
            sorted_out(&keys, &rules),
            [
                copied.map(ToOwned::to_owned).to_vec(),
                vec!["sub.v1.multus-cni.io/default-network".to_owned()],
                vec!["karpenter.sh/do-not-consolidate".to_owned()]
            ]
        );
    }

    #[test]
    fn mirrors_have_no_annotations_for_programs_of_the_host() {
        let host = annotated(&[
            "note",
            "resource.kubernetes.io/pod-claim-name",
            "berth.dev/origin-uid",
            "k8s.v1.cni.cncf.io/networks",
            "kubectl.kubernetes.io/last-applied-configuration",
        ]);
        let keys: Vec<String> = mirrored_annotations(&host).keys().cloned().collect();
        assert_eq!(keys, ["note", "resource.kubernetes.io/pod-claim-name"]);
    }

    proptest! {
        #[test]
        fn no_key_outside_the_list_reaches_the_host(
            domain in "([a-zA-Z0-9.-]{0,20}/)?",
            near in prop::sample::select(vec!["", "kubernetes.io/", "x.kubernetes.io/", "berth.dev/", "simulation.berth.dev/", "tools.example.com/"]),
            name in "(egress-bandwidth|[a-zA-Z0-9._-]{1,20})",
        ) {
            let listed = ["tools.example.com/*".to_owned()];
            let rules = AnnotationRules { listed: &listed, ..POD };
            for key in [format!("{domain}{name}"), format!("{near}{name}")] {
                let is_allowed = key == "kubernetes.io/egress-bandwidth"
                    || key.starts_with("tools.example.com/")
                    || key.starts_with("simulation.berth.dev/");
                let [copied, ..] = sorted_out(&[key.as_str()], &rules);
                prop_assert_eq!(copied.len(), usize::from(is_allowed), "{}", key);
            }
        }
    }
}
