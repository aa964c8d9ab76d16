#[path = "permission_tests.rs"]
mod permission_tests;

use super::*;
use crate::doctor::Level;
use crate::doctor::facts::{Certificate, Read};
use berth_api::RateCard;
use berth_control::install::manifests;
use jiff::{SignedDuration, Span};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Subject};
use serde_json::{Value, json};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Control's ClusterRoles as on a host, whose controller manager aggregates rules.
fn cluster_roles() -> Vec<ClusterRole> {
    let mut roles: Vec<ClusterRole> = manifests::cluster_roles().into();
    let of_parts = roles.iter().filter(|role| !role.labels().is_empty());
    let rules: Vec<PolicyRule> = of_parts.filter_map(|role| role.rules.clone()).flatten().collect();
    let aggregated = roles.iter_mut().find(|role| role.aggregation_rule.is_some());
    aggregated.unwrap().rules = Some(rules);
    roles
}

/// A host on which all is well.
fn healthy() -> Facts {
    let mut definitions = berth_api::crd::all();
    for definition in &mut definitions {
        definition.status = Some(read(json!({
            "acceptedNames": {"plural": "x", "kind": "X"}, "storedVersions": [],
            "conditions": [{"type": "Established", "status": "True"}],
        })));
    }
    let policies = berth_admission_policies::all_policies();
    Facts {
        now: now(),
        host_time: Ok(now()),
        version: Ok(berth_kubernetes_versions::KUBERNETES_DEFAULT.into()),
        etcd_ready: Ok(true),
        metrics: Ok("etcd_request_duration_seconds_bucket{le=\"0.05\"} 5\n".into()),
        definitions: Ok(definitions),
        cluster_roles: Ok(cluster_roles()),
        cluster_role_bindings: Ok(manifests::cluster_role_bindings("somebody").into()),
        roles: Ok(vec![manifests::role()]),
        role_bindings: Ok(vec![manifests::role_binding("somebody")]),
        certificates_job: Ok(None),
        policies: Ok(policies
            .iter()
            .map(berth_admission_policies::AdmissionPolicy::build_policy)
            .collect()),
        control: Ok(None),
        gateway: Ok(None),
        lease: Ok(Some(read(json!({
            "metadata": {"name": "berth-control"},
            "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2025-12-31T23:59:50.000000Z"},
        })))),
        daemon_sets: Ok(vec![read(json!({
            "metadata": {"name": "calico-node", "namespace": "kube-system"}, "spec": {"selector": {}, "template": {"spec": {
                "containers": [], "tolerations": [{"operator": "Exists"}]}}},
        }))]),
        cilium: Ok(None),
        nodes: Ok(vec![read(json!({
            "metadata": {"name": "n1", "labels": {"gpu": "h100"}}, "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        }))]),
        pools: Ok(vec![read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "h100"},
            "spec": {"nodeSelector": {"gpu": "h100"}, "gpuResourceName": "nvidia.com/gpu"},
        }))]),
        classes: Ok(vec![read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "gold"},
            "spec": {"sync": {"pods": {"runtimeClasses": ["*", "nvidia"]}}},
        }))]),
        rate_cards: Ok(vec![card("list")]),
        runtime_classes: Ok(vec![read(json!({"metadata": {"name": "nvidia"}, "handler": "nvidia"}))]),
        storage_classes: Ok(vec![read(json!({
            "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "x",
        }))]),
        volumes: Ok(Vec::new()),
        certificates: Ok(Vec::new()),
        validating: Ok(vec![webhook("Fail")]),
        mutating: Ok(Vec::new()),
        endpoints: Ok(vec![read(json!({
            "metadata": {"name": "s-1", "namespace": "sys", "labels": {"kubernetes.io/service-name": "s"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
        }))]),
    }
}

/// Gives control's rights to its ServiceAccount, as the chart does.
fn bind_account(facts: &mut Facts) {
    let account: Subject =
        read(json!({"kind": "ServiceAccount", "name": "berth-control", "namespace": "berth-system"}));
    for binding in facts.cluster_role_bindings.as_mut().unwrap() {
        binding.subjects = Some(vec![account.clone()]);
    }
    for binding in facts.role_bindings.as_mut().unwrap() {
        binding.subjects = Some(vec![account.clone()]);
    }
}

/// A RateCard for all usage.
fn card(name: &str) -> RateCard {
    read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "RateCard", "metadata": {"name": name},
        "spec": {"currency": "EUR", "prices": [{"rates": [{"resource": "GPU", "price": "2.10"}]}]},
    }))
}

fn webhook(policy: &str) -> ValidatingWebhookConfiguration {
    read(json!({"metadata": {"name": "guard"}, "webhooks": [{
        "name": "a.example.com", "failurePolicy": policy, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "sys", "name": "s"}},
    }]}))
}

/// What is not ok, as `check: level`.
fn faults(facts: &Facts) -> Vec<String> {
    let results = check(facts).into_iter().filter(|result| result.level != Level::Ok);
    results
        .map(|result| {
            assert!(result.fix.is_some(), "{result:?}");
            format!("{}: {:?}", result.check, result.level)
        })
        .collect()
}

#[test]
fn a_healthy_host_has_no_fault() {
    assert_eq!(faults(&healthy()), Vec::<String>::new());
}

#[test]
fn each_fault_is_found_alone() {
    type Change = fn(&mut Facts);
    let cases: [(&str, Change); 25] = [
        ("host version: Problem", |facts| facts.version = Ok("v1.33.9".into())),
        ("host version: Warning", |facts| facts.version = Ok("v1.99.0".into())),
        ("definitions: Problem", |facts| {
            drop(facts.definitions.as_mut().unwrap().pop());
        }),
        ("definitions: Problem", |facts| {
            facts.definitions.as_mut().unwrap()[0].status = None;
        }),
        ("definitions: Warning", |facts| {
            facts.definitions.as_mut().unwrap()[0].spec.versions[0].schema = None;
        }),
        ("permissions: Problem", |facts| {
            drop(facts.cluster_roles.as_mut().unwrap().pop());
        }),
        ("admission policies: Problem", |facts| {
            drop(facts.policies.as_mut().unwrap().pop());
        }),
        ("control: Problem", |facts| facts.lease = Ok(None)),
        ("control: Problem", |facts| {
            facts.lease = Ok(Some(read(json!({"metadata": {}, "spec": {
                "holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2025-12-31T23:50:00.000000Z"}}))));
        }),
        ("control: Problem", |facts| {
            bind_account(facts);
            facts.control = Ok(Some(read(
                json!({"metadata": {}, "spec": {"selector": {}, "template": {}}}),
            )));
        }),
        ("network: Warning", |facts| facts.daemon_sets = Ok(Vec::new())),
        ("network: Problem", |facts| {
            facts.daemon_sets.as_mut().unwrap()[0].metadata.name = Some("kube-flannel-ds".into());
        }),
        ("tolerations: Problem", |facts| {
            pod_of_first_set(facts).tolerations = None;
        }),
        ("tolerations: Warning", |facts| {
            let mut other = facts.daemon_sets.as_ref().unwrap()[0].clone();
            other.metadata.name = Some("fluent-bit".into());
            facts.daemon_sets.as_mut().unwrap().insert(0, other);
            pod_of_first_set(facts).tolerations = None;
        }),
        ("etcd: Problem", |facts| facts.etcd_ready = Ok(false)),
        ("etcd: Problem", |facts| {
            facts.metrics = Ok("etcd_request_duration_seconds_bucket{le=\"4\"} 5\n".into());
        }),
        ("etcd: Warning", |facts| {
            facts.metrics = Ok("etcd_request_duration_seconds_bucket{le=\"0.5\"} 5\n".into());
        }),
        ("clock: Warning", |facts| {
            facts.host_time = Ok(now() - Span::new().seconds(9));
        }),
        ("clock: Problem", |facts| {
            facts.host_time = Ok(now() - Span::new().minutes(2));
        }),
        ("webhooks: Problem", |facts| facts.endpoints = Ok(Vec::new())),
        ("webhooks: Warning", |facts| {
            facts.validating.as_mut().unwrap()[0].webhooks.as_mut().unwrap()[0].timeout_seconds = Some(30);
        }),
        ("runtime classes: Problem", |facts| {
            facts.runtime_classes = Ok(Vec::new());
        }),
        ("GPU nodes: Problem", |facts| {
            facts.nodes.as_mut().unwrap()[0].status = None;
        }),
        ("storage: Warning", |facts| facts.storage_classes = Ok(Vec::new())),
        ("retained volumes: Warning", |facts| {
            facts.volumes = Ok(vec![read(json!({
                "metadata": {"name": "pv"}, "status": {"phase": "Released"},
                "spec": {"persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "berth-vision-abcdefghijklm"}},
            }))]);
        }),
    ];
    for (number, (expected, change)) in cases.into_iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        assert_eq!(faults(&facts), [expected], "case {number}");
    }
}

/// The pods of the first DaemonSet.
fn pod_of_first_set(facts: &mut Facts) -> &mut PodSpec {
    let set = &mut facts.daemon_sets.as_mut().unwrap()[0];
    set.spec.template.spec.as_mut().unwrap()
}

#[test]
fn nodes_with_gpus_count_before_there_are_pools() {
    let mut facts = healthy();
    facts.pools = Ok(Vec::new());
    pod_of_first_set(&mut facts).tolerations = None;
    assert_eq!(faults(&facts), ["tolerations: Problem"]);
    facts.nodes.as_mut().unwrap()[0].status = None;
    assert_eq!(faults(&facts), Vec::<String>::new());
}

#[test]
fn the_vpc_cni_confines_no_tenants_whatever_its_agent_does() {
    let with = |arguments: Value, other: Option<&str>| {
        let mut facts = healthy();
        let sets = facts.daemon_sets.as_mut().unwrap();
        if let Some(name) = other {
            let mut other = sets[0].clone();
            other.metadata.name = Some(name.into());
            sets.push(other);
        }
        sets[0].metadata.name = Some("aws-node".into());
        let agent = json!([{"name": "aws-eks-nodeagent", "args": arguments}]);
        pod_of_first_set(&mut facts).containers = read(agent);
        faults(&facts)
    };
    let (on, off) = (
        json!(["--enable-network-policy=true"]),
        json!(["--enable-network-policy=false"]),
    );
    for arguments in [&on, &off, &json!([])] {
        assert_eq!(with(arguments.clone(), None), ["network: Problem"], "{arguments}");
    }
    // Calico enforces policies of pods that the VPC CNI connects.
    assert_eq!(with(off, Some("calico-node")), Vec::<String>::new());
    assert_eq!(with(on, Some("calico-node")), ["network: Warning"]);
}

#[test]
fn cilium_must_match_cidrs_with_nodes_where_the_api_server_is_one() {
    let with = |mode: Option<&str>, address: &str| {
        let mut facts = healthy();
        facts.daemon_sets.as_mut().unwrap()[0].metadata.name = Some("cilium".into());
        facts.cilium = Ok(Some(read(
            json!({"data": {"policy-cidr-match-mode": mode.unwrap_or_default()}}),
        )));
        let status = facts.nodes.as_mut().unwrap()[0].status.as_mut().unwrap();
        status.addresses = Some(read(json!([{"type": "InternalIP", "address": "192.0.2.7"}])));
        facts.endpoints.as_mut().unwrap().push(read(json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}],
        })));
        faults(&facts)
    };
    assert_eq!(with(None, "192.0.2.7"), ["network: Warning"]);
    assert_eq!(with(Some("nodes"), "192.0.2.7"), Vec::<String>::new());
    // A managed API server is not a node.
    assert_eq!(with(None, "203.0.113.9"), Vec::<String>::new());
    let mut facts = healthy();
    facts.cilium = Err("forbidden".into());
    assert_eq!(faults(&facts), Vec::<String>::new());
    facts.daemon_sets.as_mut().unwrap()[0].metadata.name = Some("cilium".into());
    assert_eq!(faults(&facts), ["network: Warning"]);
}

#[test]
fn pods_outside_of_the_networks_of_nodes_are_named_unless_control_blocks_these() {
    let with = |namespace: &str, target: &str, address: &str, arguments: Value| {
        let mut facts = healthy();
        let node = &mut facts.nodes.as_mut().unwrap()[0];
        node.spec = Some(read(
            json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:1::/64"]}),
        ));
        let addresses = json!([{"type": "InternalIP", "address": "192.0.2.7"}]);
        node.status.as_mut().unwrap().addresses = Some(read(addresses));
        facts.control = Ok(Some(read(
            json!({"metadata": {}, "spec": {"selector": {}, "template": {"spec": {
            "containers": [{"name": "control", "args": arguments}]}}}}),
        )));
        facts.endpoints = Ok(vec![read(json!({
            "metadata": {"name": "a", "namespace": namespace}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "targetRef": {"kind": target}}],
        }))]);
        let mut found = faults(&facts);
        found.retain(|fault| fault.starts_with("network"));
        found
    };
    let none = Vec::<String>::new();
    for address in ["10.244.0.9", "fd00:1::9", "192.0.2.7"] {
        assert_eq!(with("kube-system", "Pod", address, json!([])), none, "{address}");
    }
    for namespace in ["kube-system", "berth-system"] {
        assert_eq!(with(namespace, "Pod", "10.245.0.9", json!([])), ["network: Warning"]);
    }
    let blocked = json!(["--log-format=json", "--blocked-cidr=172.16.0.0/12,10.245.0.0/16"]);
    assert_eq!(with("kube-system", "Pod", "10.245.0.9", blocked), none);
    let apart = json!(["--blocked-cidr", "10.245.0.0/16", "--log-format=json"]);
    assert_eq!(with("kube-system", "Pod", "10.245.0.9", apart), none);
    // Tenants decide on endpoints of theirs.
    assert_eq!(with("berth-vision", "Pod", "10.245.0.9", json!([])), none);
    assert_eq!(with("kube-system", "Node", "10.245.0.9", json!([])), none);
}

#[test]
fn addresses_of_nodes_that_control_does_not_close_are_named() {
    let with = |count: u8, arguments: Value| {
        let mut facts = healthy();
        let addresses: Vec<Value> = (1..=count)
            .map(|last| json!({"type": "InternalIP", "address": format!("192.0.2.{last}")}))
            .collect();
        let node = &mut facts.nodes.as_mut().unwrap()[0];
        node.status.as_mut().unwrap().addresses = Some(read(json!(addresses)));
        facts.control = Ok(Some(read(
            json!({"metadata": {}, "spec": {"selector": {}, "template": {"spec": {
            "containers": [{"name": "control", "args": arguments}]}}}}),
        )));
        let mut found = faults(&facts);
        found.retain(|fault| fault.starts_with("network"));
        found
    };
    let none = Vec::<String>::new();
    assert_eq!(with(4, json!([])), none);
    assert_eq!(with(5, json!([])), ["network: Warning"]);
    for closing in [
        json!(["--node-cidr=198.51.100.0/24,192.0.2.0/24"]),
        json!(["--node-cidr", "192.0.2.0/24"]),
        json!(["--blocked-cidr=192.0.2.0/24"]),
    ] {
        assert_eq!(with(5, closing.clone()), none, "{closing}");
    }
    assert_eq!(with(1, json!(["--node-cidr=198.51.100.0/24"])), ["network: Warning"]);
}

#[test]
fn rate_cards_that_contradict_each_other_are_named() {
    let of_cards = |names: &[&str]| {
        let mut facts = healthy();
        facts.rate_cards = Ok(names.iter().copied().map(card).collect());
        let mut results = check(&facts).into_iter();
        let found = results.find(|result| result.check == "prices").unwrap();
        (found.level, found.message)
    };
    assert_eq!(of_cards(&[]).0, Level::Ok);
    let (level, message) = of_cards(&["a", "b"]);
    assert_eq!(level, Level::Warning);
    assert!(
        message.starts_with("RateCards a and b both have prices in EUR for all usage"),
        "{message}"
    );
    assert!(of_cards(&["a", "b", "c"]).1.ends_with("(the first of 2 errors)"));
}

#[test]
fn what_cannot_be_read_is_a_warning() {
    let mut facts = healthy();
    facts.certificates = Err("forbidden".into());
    facts.nodes = Err("forbidden".into());
    facts.metrics = Err("forbidden".into());
    assert_eq!(
        faults(&facts),
        [
            "certificates: Warning",
            "etcd: Warning",
            "GPU nodes: Warning",
            "tolerations: Warning"
        ]
    );
    // The Lease alone does not say whether the Deployment is well.
    let mut facts = healthy();
    facts.control = Err("forbidden".into());
    assert_eq!(faults(&facts), ["permissions: Warning", "control: Warning"]);
}

/// A user who may read nothing sees no check that is ok.
#[test]
fn nothing_is_ok_for_a_user_who_may_read_nothing() {
    fn deny<T>() -> Read<T> {
        Err("it is forbidden".into())
    }
    let facts = Facts {
        now: now(),
        host_time: deny(),
        version: deny(),
        etcd_ready: deny(),
        metrics: deny(),
        definitions: deny(),
        cluster_roles: deny(),
        cluster_role_bindings: deny(),
        roles: deny(),
        role_bindings: deny(),
        certificates_job: deny(),
        policies: deny(),
        control: deny(),
        gateway: deny(),
        lease: deny(),
        daemon_sets: deny(),
        cilium: deny(),
        nodes: deny(),
        pools: deny(),
        classes: deny(),
        rate_cards: deny(),
        runtime_classes: deny(),
        storage_classes: deny(),
        volumes: deny(),
        certificates: deny(),
        validating: deny(),
        mutating: deny(),
        endpoints: deny(),
    };
    for result in check(&facts) {
        assert_eq!(result.level, Level::Warning, "{result:?}");
        assert_eq!(result.fix.as_deref(), Some("run it with more permissions on the host"));
    }
}

#[test]
fn webhooks_that_are_ignored_may_be_gone() {
    let mut facts = healthy();
    facts.validating = Ok(vec![webhook("Ignore")]);
    facts.endpoints = Ok(Vec::new());
    assert_eq!(faults(&facts), Vec::<String>::new());
}

#[test]
fn certificates_are_judged_by_renewal_and_expiry() {
    let at = |days: i64| now() + SignedDuration::from_hours(24 * days);
    for (renew, end, expected) in [
        (30, 60, None),
        // Control renews in its own time.
        (0, 30, None),
        (-2, 28, Some("certificates: Warning")),
        (-20, 6, Some("certificates: Problem")),
        (-40, -1, Some("certificates: Problem")),
    ] {
        let mut facts = healthy();
        facts.certificates = Ok(vec![Certificate {
            place: "Secret a/certificates, key x.crt".into(),
            renew_at: at(renew),
            not_after: at(end),
        }]);
        assert_eq!(
            faults(&facts),
            expected.into_iter().collect::<Vec<_>>(),
            "{renew} {end}"
        );
    }
}
