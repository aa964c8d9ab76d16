//! What is forbidden, and what is withdrawn from settings.

mod deadlines;

use super::{
    super::{
        access::{CLASS_NOT_ALLOWED, NO_CLASS, Namespace, POOL_NOT_ALLOWED, WithoutClass},
        settings::{self, Settings},
    },
    forbidden::{ATTRIBUTES_CLASS_NOT_ALLOWED, INLINE_DRIVER_NOT_ALLOWED, STORAGE_CLASS_NOT_ALLOWED},
    *,
};
use crate::{authentication::ResolvedAuthentication, network::AllowedNetworks};
use berth_api::{
    ArgoCdServer, ControlPlaneService, ControlPlaneServiceType, DnsPolicy, ExpirationPolicy, HostNodePool,
    HostNodePoolSpec, NodeGroup, NodeMode, SchedulingMode, SyncPolicy, TenantAccess, TenantClass, TenantClassSpec,
    TenantLimits,
    network::{ClassNetwork, EgressRule},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const DAY: i64 = 24 * 3600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// What a tenant of class gold runs with.
fn settings() -> Settings {
    let mut sync = SyncPolicy::default();
    sync.shared_nodes.pools = vec!["cpu".into()];
    let egress = EgressRule {
        cidr: "10.20.0.0/16".into(),
        ports: Vec::new(),
        protocol: None,
    };
    Settings {
        version: "v1.37.1".into(),
        class: Some("gold".into()),
        scheduling: SchedulingMode::Host,
        replicas: 1,
        endpoint: ControlPlaneService {
            kind: ControlPlaneServiceType::LoadBalancer,
            annotations: [("lb.example.com/pool".to_owned(), "a".to_owned())].into(),
            ..ControlPlaneService::default()
        },
        sync,
        dns: DnsPolicy::default(),
        class_network: ClassNetwork::default(),
        network: AllowedNetworks {
            egress: vec![egress],
            ingress: Vec::new(),
        },
        limits: TenantLimits::default(),
        encryption: None,
        expiration: ExpirationPolicy::default(),
        authentication: ResolvedAuthentication::default(),
        max_token_seconds: 86_400,
        audit: None,
        access: TenantAccess::default(),
        sleep: berth_api::ClassSleep::default(),
        manifests: Vec::new(),
        argo_cd: None,
        argo_cd_from_class: false,
        argo_cd_server: ArgoCdServer::default(),
        withdrawn_storage: BTreeSet::new(),
    }
}

/// A class that allows all of that, changed.
fn class(change: impl FnOnce(&mut TenantClassSpec)) -> TenantClass {
    let spec = json!({
        "network": {"egress": {"allowedCIDRs": ["10.0.0.0/8"]}},
        "controlPlane": {"service": {"annotations": ["lb.example.com/pool"]}},
        "sync": {"sharedNodes": {"pools": ["cpu"]}},
    });
    let mut spec: TenantClassSpec = serde_json::from_value(spec).unwrap();
    change(&mut spec);
    TenantClass::new("gold", spec)
}

fn pool(rule: Value) -> (HostNodePool, usize) {
    let spec = HostNodePoolSpec {
        allowed_namespaces: serde_json::from_value(rule).unwrap(),
        ..HostNodePoolSpec::default()
    };
    (HostNodePool::new("p", spec), 1)
}

fn pools() -> BTreeMap<String, (HostNodePool, usize)> {
    let open = || pool(json!({}));
    [
        ("h100".to_owned(), open()),
        ("l40s".to_owned(), open()),
        ("cpu".to_owned(), open()),
    ]
    .into()
}

/// What is forbidden to a tenant with a node of h100 and the shared pool cpu, as reason, object and withdrawal.
fn find(
    class: Option<&TenantClass>,
    pools: &BTreeMap<String, (HostNodePool, usize)>,
    settings: &Settings,
) -> Vec<(&'static str, String, Withdrawal)> {
    let groups = [("train", "h100"), ("serve", "l40s")].map(|(name, pool)| NodeGroup::private(name, pool, 1));
    find_with(&groups, class, pools, settings)
}

/// The same, with these node groups in its spec.
fn find_with(
    groups: &[NodeGroup],
    class: Option<&TenantClass>,
    pools: &BTreeMap<String, (HostNodePool, usize)>,
    settings: &Settings,
) -> Vec<(&'static str, String, Withdrawal)> {
    let running = Running {
        settings,
        groups,
        held: BTreeSet::from([("train".to_owned(), "h100".to_owned())]),
    };
    let labels = BTreeMap::from([("team".to_owned(), "vision".to_owned())]);
    let rules = Rules {
        without_class: WithoutClass::Deny,
        namespace: Namespace {
            name: "team",
            labels: Some(&labels),
        },
        class,
        pools,
    };
    let found = find_forbidden(&running, &rules).into_iter();
    found
        .map(|forbidden| (forbidden.reason, forbidden.object, forbidden.withdrawal))
        .collect()
}

fn by_class(change: impl FnOnce(&mut TenantClassSpec)) -> Vec<(&'static str, String, Withdrawal)> {
    find(Some(&class(change)), &pools(), &settings())
}

#[test]
fn what_the_class_and_the_pools_allow_is_compliant() {
    assert!(by_class(|_| {}).is_empty());
    assert!(condition(&[]).is_true());
}

#[test]
fn each_rule_of_a_class_withdraws_what_it_is_about() {
    let gold = |reason, withdrawal| vec![(reason, "TenantClass/gold".to_owned(), withdrawal)];
    assert_eq!(
        by_class(|spec| spec.allowed_namespaces.from = berth_api::NamespacesFrom::None),
        gold(CLASS_NOT_ALLOWED, Withdrawal::AllNodes)
    );
    assert_eq!(
        by_class(|spec| spec.versions = vec!["v1.36.4".into()]),
        gold("VersionNotAllowed", Withdrawal::Nothing)
    );
    assert_eq!(
        by_class(|spec| spec.network.egress.allowed_cidrs.clear()),
        gold("NetworkNotAllowed", Withdrawal::Networks)
    );
    assert_eq!(
        by_class(|spec| spec.control_plane.service.types = vec![ControlPlaneServiceType::NodePort]),
        gold("EndpointNotAllowed", Withdrawal::Service)
    );
    assert_eq!(
        by_class(|spec| spec.control_plane.service.annotations.clear()),
        gold("EndpointNotAllowed", Withdrawal::Service)
    );
    assert_eq!(
        by_class(|spec| spec.sync.shared_nodes.pools.clear()),
        gold("SharedPoolNotAllowed", Withdrawal::SharedPool("cpu".into()))
    );
}

#[test]
fn a_registration_in_argo_cd_is_withdrawn_if_the_class_no_longer_allows_it() {
    let mut registered = settings();
    registered.argo_cd = Some(serde_json::from_value(json!({"project": "team"})).unwrap());
    let under = |rules: Value| {
        let class = class(|spec| spec.integrations = serde_json::from_value(json!({"argoCD": rules})).unwrap());
        find(Some(&class), &pools(), &registered)
    };
    let allowed = json!({"registration": "OnRequest", "projects": ["{namespace}"]});
    assert!(under(allowed).is_empty());
    let forbidden = [(
        settings::ARGO_CD_NOT_ALLOWED,
        "TenantClass/gold".to_owned(),
        Withdrawal::ArgoCd,
    )];
    for rules in [json!({}), json!({"registration": "Always", "projects": ["shared"]})] {
        assert_eq!(under(rules), forbidden);
    }
    let mut withdrawn = registered.clone();
    withdraw(&mut withdrawn, None, &[Withdrawal::ArgoCd]);
    assert_eq!(withdrawn.argo_cd, None);
}

fn class_of_storage(name: &str) -> StorageOffer {
    StorageOffer::StorageClass(name.into())
}

#[test]
fn each_storage_class_that_claims_have_and_the_class_does_not_offer_has_a_grace_period_of_its_own() {
    let mut settings = settings();
    settings.sync.storage.classes = vec!["fast".into()];
    let find = |settings: &Settings, classes: &[(&str, usize)]| {
        let used = classes.iter().map(|(class, count)| (class_of_storage(class), *count));
        find_forbidden_storage(settings, &used.collect(), DAY)
    };
    assert!(find(&settings, &[("fast", 3)]).is_empty());
    let first = assess(find(&settings, &[("fast", 3), ("gone", 2)]), &[], at(0));
    let [violation] = first.violations.as_slice() else {
        panic!("{first:?}")
    };
    assert_eq!(violation.reason, STORAGE_CLASS_NOT_ALLOWED);
    assert_eq!(violation.object, "StorageClass/gone");
    for part in [
        "TenantClass gold",
        "2 PersistentVolumeClaims",
        "data stay",
        "spec.sync.storage.classes",
    ] {
        assert!(violation.message.contains(part), "{}", violation.message);
    }
    // Another one, on the last day of the first.
    let both = [("gone", 2), ("slow", 1)];
    let later = assess(find(&settings, &both), &first.violations, at(DAY - 1));
    let over = assess(find(&settings, &both), &later.violations, at(DAY));
    assert_eq!(over.withdrawals, [Withdrawal::Storage(class_of_storage("gone"))]);
    let mut withdrawn = settings.clone();
    withdraw(&mut withdrawn, None, &over.withdrawals);
    assert_eq!(withdrawn.withdrawn_storage, BTreeSet::from([class_of_storage("gone")]));
    // All are offered again.
    settings.sync.storage.classes = vec!["*".into()];
    assert!(find(&settings, &both).is_empty());
}

#[test]
fn attributes_classes_of_claims_and_drivers_of_inline_volumes_are_withdrawn_as_storage_classes_are() {
    let mut settings = settings();
    let gold = StorageOffer::AttributesClass("gold".into());
    let driver = StorageOffer::InlineDriver("inline.example.com".into());
    let used = BTreeMap::from([(gold.clone(), 2), (driver.clone(), 1)]);
    let first = assess(find_forbidden_storage(&settings, &used, DAY), &[], at(0));
    let reported: Vec<_> = first
        .violations
        .iter()
        .map(|violation| (violation.reason.as_str(), violation.object.as_str()))
        .collect();
    let expected = [
        (INLINE_DRIVER_NOT_ALLOWED, "CSIDriver/inline.example.com"),
        (ATTRIBUTES_CLASS_NOT_ALLOWED, "VolumeAttributesClass/gold"),
    ];
    assert_eq!(reported, expected);
    assert!(first.withdrawals.is_empty());
    let over = assess(
        find_forbidden_storage(&settings, &used, DAY),
        &first.violations,
        at(DAY),
    );
    let mut withdrawn = settings.clone();
    withdraw(&mut withdrawn, None, &over.withdrawals);
    assert_eq!(withdrawn.withdrawn_storage, BTreeSet::from([gold, driver]));
    settings.sync.storage.attributes_classes = vec!["gold".into()];
    settings.sync.storage.inline_drivers = vec!["inline.example.com".into()];
    assert!(find_forbidden_storage(&settings, &used, DAY).is_empty());
}

#[test]
fn a_pool_withdraws_only_the_nodes_that_the_tenant_has_of_it() {
    let forbidding = |name: &str| {
        let mut pools = pools();
        pools.insert(
            name.into(),
            pool(json!({"from": "Selector", "selector": {"matchLabels": {"team": "speech"}}})),
        );
        find(Some(&class(|_| {})), &pools, &settings())
    };
    let found = |pool: &str, withdrawal| vec![(POOL_NOT_ALLOWED, format!("HostNodePool/{pool}"), withdrawal)];
    assert_eq!(forbidding("h100"), found("h100", Withdrawal::OwnNodes));
    assert_eq!(forbidding("cpu"), found("cpu", Withdrawal::SharedPool("cpu".into())));
    assert!(forbidding("l40s").is_empty(), "it has no node of it");
    let mut other_mode = pools();
    for (pool, _) in other_mode.values_mut() {
        pool.spec.modes = vec![NodeMode::Dynamic];
    }
    assert_eq!(
        find(Some(&class(|_| {})), &other_mode, &settings()),
        [(MODE_NOT_OFFERED, "HostNodePool/h100".to_owned(), Withdrawal::OwnNodes)]
    );
}

#[test]
fn a_group_that_becomes_shared_keeps_no_nodes_of_a_pool_that_does_not_offer_that() {
    let shared = |name: &str, pool: &str| NodeGroup {
        mode: NodeMode::Shared,
        replicas: None,
        ..NodeGroup::private(name, pool, 1)
    };
    let find = |groups: &[NodeGroup]| find_with(groups, Some(&class(|_| {})), &pools(), &settings());
    assert_eq!(
        find(&[shared("train", "h100"), shared("serve", "l40s")]),
        [(MODE_NOT_OFFERED, "HostNodePool/h100".to_owned(), Withdrawal::OwnNodes)]
    );
    // It has no nodes.
    assert!(find(&[shared("serve", "h100"), shared("train", "cpu")]).is_empty());
}

#[test]
fn a_deleted_class_forbids_nothing_and_no_class_is_only_reported() {
    assert!(find(None, &pools(), &settings()).is_empty());
    let unclassed = Settings {
        class: None,
        ..settings()
    };
    assert_eq!(
        find(None, &pools(), &unclassed),
        [(NO_CLASS, "TenantClass/default".to_owned(), Withdrawal::Nothing)]
    );
    // The class default came later: its rules for settings are for those that were accepted with it.
    let narrow = class(|spec| {
        spec.versions = vec!["v1.36.4".into()];
        spec.allowed_namespaces.from = berth_api::NamespacesFrom::None;
    });
    let found = find(Some(&narrow), &pools(), &unclassed);
    assert_eq!(
        found.iter().map(|(reason, ..)| *reason).collect::<Vec<_>>(),
        [CLASS_NOT_ALLOWED]
    );
}

#[test]
fn settings_lose_what_is_withdrawn_and_nothing_else() {
    let withdrawn = |rules: &TenantClass, withdrawal: Withdrawal| {
        let mut after = settings();
        withdraw(&mut after, Some(&rules.spec), &[withdrawal]);
        after
    };
    let before = settings();
    for harmless in [
        Withdrawal::Nothing,
        Withdrawal::OwnNodes,
        Withdrawal::SharedPool("other".into()),
    ] {
        assert_eq!(withdrawn(&class(|_| {}), harmless), before);
    }
    let closed = class(|spec| spec.network.egress.allowed_cidrs.clear());
    let after = withdrawn(&closed, Withdrawal::Networks);
    assert_eq!(after.network, AllowedNetworks::default());
    for nodes in [Withdrawal::AllNodes, Withdrawal::SharedPool("cpu".into())] {
        let after = withdrawn(&class(|_| {}), nodes);
        assert!(after.sync.shared_nodes.pools.is_empty());
        assert_eq!(after.network, before.network);
    }
    let only_ports = class(|spec| spec.control_plane.service.types = vec![ControlPlaneServiceType::NodePort]);
    let after = withdrawn(&only_ports, Withdrawal::Service).endpoint;
    assert_eq!(
        (after.kind, after.annotations.len()),
        (ControlPlaneServiceType::NodePort, 0)
    );
    let inside = class(|spec| {
        spec.control_plane.service.types = vec![ControlPlaneServiceType::NodePort, ControlPlaneServiceType::ClusterIp];
    });
    let after = withdrawn(&inside, Withdrawal::Service).endpoint;
    assert_eq!(after.kind, ControlPlaneServiceType::ClusterIp);
    let bare = class(|spec| spec.control_plane.service.annotations.clear());
    let after = withdrawn(&bare, Withdrawal::Service).endpoint;
    assert_eq!(
        (after.kind, after.annotations.len()),
        (ControlPlaneServiceType::LoadBalancer, 0)
    );
}

#[test]
fn issuers_that_a_class_no_longer_allows_are_withdrawn_and_its_own_take_their_place() {
    let jwt = |url: &str| {
        json!({"jwt": [{
            "issuer": {"url": url, "audiences": ["berth"]}, "claimMappings": {"username": {"claim": "sub", "prefix": "x:"}},
        }]})
    };
    let mut settings = settings();
    settings.authentication = ResolvedAuthentication {
        rules: serde_json::from_value(jwt("https://own.example.com")).unwrap(),
        from_class: false,
    };
    let class_with =
        |authentication: Value| class(|spec| spec.authentication = serde_json::from_value(authentication).unwrap());
    let allowed = class_with(json!({"allowedIssuers": ["https://own.example.com"]}));
    assert!(find(Some(&allowed), &pools(), &settings).is_empty());
    let default = jwt("https://class.example.com");
    for forbidding in [
        json!({"allowedIssuers": ["https://class.example.com"], "default": default}),
        json!({"locked": true, "default": default}),
    ] {
        let rules = class_with(forbidding);
        assert_eq!(
            find(Some(&rules), &pools(), &settings),
            [(
                "AuthenticationNotAllowed",
                "TenantClass/gold".to_owned(),
                Withdrawal::Issuers
            )]
        );
        let mut after = settings.clone();
        withdraw(&mut after, Some(&rules.spec), &[Withdrawal::Issuers]);
        assert!(after.authentication.from_class);
        assert_eq!(
            after.authentication.rules.jwt[0].issuer.url,
            "https://class.example.com"
        );
        assert!(find(Some(&rules), &pools(), &after).is_empty());
    }
}
