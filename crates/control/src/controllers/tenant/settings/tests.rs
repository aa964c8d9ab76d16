use super::*;
use berth_api::{
    ControlPlaneServiceType, ControlPlaneSpec, NodeGroup, TenantClusterSpec, TenantClusterStatus, policy_annotations,
};
use serde_json::{Value, json};

/// The settings on a host that offers two versions and blocks no network.
fn resolve(
    cluster: &TenantCluster,
    classes: impl Fn(&str) -> Option<Arc<TenantClass>>,
) -> Result<Settings, ConditionUpdate> {
    super::resolve(cluster, classes, &["v1.37.1", "v1.36.4"].map(String::from), &[])
}

fn cluster(class: Option<&str>, earlier: Option<&str>) -> TenantCluster {
    let spec = TenantClusterSpec {
        class_name: class.map(Into::into),
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new("a", spec);
    cluster.status = Some(TenantClusterStatus {
        class_name: earlier.map(Into::into),
        ..TenantClusterStatus::default()
    });
    cluster
}

fn class(name: &str) -> Arc<TenantClass> {
    let mut spec = TenantClassSpec {
        scheduling_mode: SchedulingMode::Tenant,
        ..TenantClassSpec::default()
    };
    spec.sync.storage.classes = vec![name.into()];
    Arc::new(TenantClass::new(name, spec))
}

fn with(names: &'static [&str]) -> impl Fn(&str) -> Option<Arc<TenantClass>> {
    move |name| names.contains(&name).then(|| class(name))
}

#[test]
fn a_tenant_without_class_has_the_default_one_or_berths_defaults() {
    let none = resolve(&cluster(None, None), with(&["gold"])).unwrap();
    assert_eq!((none.class.as_deref(), none.class_name()), (None, "default"));
    assert_eq!(
        (none.sync, none.scheduling),
        (SyncPolicy::default(), SchedulingMode::Host)
    );
    let default = resolve(&cluster(None, None), with(&["default", "gold"])).unwrap();
    assert_eq!(default.class.as_deref(), Some("default"));
    assert_eq!(default.sync.storage.classes, ["default"]);
    let gold = resolve(&cluster(Some("gold"), None), with(&["default", "gold"])).unwrap();
    assert_eq!((gold.class_name(), gold.scheduling), ("gold", SchedulingMode::Tenant));
}

#[test]
fn host_names_are_those_of_the_tenant() {
    let mut cluster = cluster(Some("gold"), None);
    cluster.metadata.namespace = Some("team-a".into());
    let templates = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.sync.ingress.hostnames = vec!["*.{tenant}.{namespace}.example.com".into(), "app.example.com".into()];
        Some(Arc::new(class))
    };
    let settings = resolve(&cluster, templates).unwrap();
    let expanded = ["*.a.team-a.example.com", "app.example.com"];
    assert_eq!(settings.sync.ingress.hostnames, expanded);
    let annotations = policy_annotations::annotations(&settings.sync, settings.class_name(), None);
    assert_eq!(annotations[policy_annotations::HOSTNAMES], expanded.join(","));
}

#[test]
fn images_are_those_of_the_tenant_also_while_its_spec_is_not_accepted() {
    let mut cluster = cluster(Some("gold"), None);
    cluster.metadata.namespace = Some("team-a".into());
    let mut class = class("gold").as_ref().clone();
    class.spec.sync.pods.images = Some(vec![
        "registry.example.com/{namespace}/{tenant}/*".into(),
        "docker.io/library/*".into(),
    ]);
    let settings = resolve(&cluster, |_: &str| Some(Arc::new(class.clone()))).unwrap();
    let expanded = ["registry.example.com/team-a/a/*", "docker.io/library/*"];
    assert_eq!(settings.sync.pods.images.as_deref().unwrap(), expanded);
    let annotations = policy_annotations::annotations(&settings.sync, settings.class_name(), None);
    assert_eq!(annotations[policy_annotations::IMAGES], expanded.join(","));
    let later = under_rules(settings, &cluster, &class.spec);
    assert_eq!(later.sync.pods.images.as_deref().unwrap(), expanded);
}

#[test]
fn the_scheduling_mode_of_the_tenant_wins() {
    let mut cluster = cluster(Some("gold"), None);
    cluster.spec.scheduling_mode = Some(SchedulingMode::Host);
    assert_eq!(
        resolve(&cluster, with(&["gold"])).unwrap().scheduling,
        SchedulingMode::Host
    );
}

#[test]
fn an_unknown_class_is_rejected_and_a_deleted_one_is_not_replaced() {
    let rejection = resolve(&cluster(Some("gold"), None), with(&["default"])).unwrap_err();
    assert_eq!(rejection.reason, "UnknownClass");
    assert!(
        rejection.message.contains("no TenantClass \"gold\""),
        "{}",
        rejection.message
    );
    for gone in [cluster(Some("gold"), Some("gold")), cluster(None, Some("default"))] {
        let rejection = resolve(&gone, with(&[])).unwrap_err();
        assert!(
            rejection.message.contains("the tenant keeps its rules"),
            "{}",
            rejection.message
        );
    }
}

#[test]
fn a_class_limits_versions_and_gives_one_to_tenants_that_name_none() {
    let with = |default: Option<&'static str>, versions: &'static [&str]| {
        move |_: &str| {
            let mut class = class("gold").as_ref().clone();
            class.spec.default_version = default.map(Into::into);
            class.spec.versions = versions.iter().map(ToString::to_string).collect();
            Some(Arc::new(class))
        }
    };
    let silent = cluster(Some("gold"), None);
    let version = |default: Option<&'static str>, versions: &'static [&str]| {
        resolve(&silent, with(default, versions)).unwrap().version
    };
    assert_eq!(version(None, &[]), "v1.37.1");
    assert_eq!(version(None, &["v1.36.4"]), "v1.36.4");
    assert_eq!(version(Some("v1.36.4"), &["v1.37.1", "v1.36.4"]), "v1.36.4");
    assert_eq!(resolve(&cluster(None, None), |_| None).unwrap().version, "v1.37.1");

    let mut newer = silent.clone();
    newer.spec.version = Some("v1.37.1".into());
    let rejection = resolve(&newer, with(None, &["v1.36.4"])).unwrap_err();
    assert_eq!(rejection.reason, "VersionNotAllowed");
    assert!(
        rejection.message.ends_with("set spec.version to one of v1.36.4"),
        "{}",
        rejection.message
    );
    let rejection = resolve(&silent, with(Some("v1.37.1"), &["v1.36.4"])).unwrap_err();
    assert_eq!(rejection.reason, "InvalidClass");
}

#[test]
fn a_class_limits_endpoints() {
    let with = |kind, key: Option<&str>| {
        let mut cluster = cluster(Some("gold"), None);
        cluster.spec.control_plane = Some(ControlPlaneSpec {
            service: ControlPlaneService {
                kind,
                hostnames: Vec::new(),
                annotations: key.map(|key| (key.to_owned(), String::new())).into_iter().collect(),
            },
            ..ControlPlaneSpec::default()
        });
        cluster
    };
    let limited = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.control_plane.service = ControlPlaneServicePolicy {
            types: vec![ControlPlaneServiceType::LoadBalancer],
            annotations: vec!["example.com/pool".into()],
        };
        Some(Arc::new(class))
    };
    let balanced = with(ControlPlaneServiceType::LoadBalancer, Some("example.com/pool"));
    assert_eq!(
        resolve(&balanced, limited).unwrap().endpoint.kind,
        ControlPlaneServiceType::LoadBalancer
    );
    let rejection = resolve(&with(ControlPlaneServiceType::NodePort, None), limited).unwrap_err();
    assert!(
        rejection.message.ends_with("to one of LoadBalancer"),
        "{}",
        rejection.message
    );
    let rejection = resolve(&with(ControlPlaneServiceType::LoadBalancer, Some("other/key")), limited).unwrap_err();
    assert!(
        rejection.message.contains("annotation other/key"),
        "{}",
        rejection.message
    );
    let mut unclassed = balanced;
    unclassed.spec.class_name = None;
    assert_eq!(resolve(&unclassed, |_| None).unwrap_err().reason, "EndpointNotAllowed");
}

#[test]
fn a_class_limits_shared_pools_and_only_the_host_schedules_pods_there() {
    let asking = |scheduling| {
        let mut cluster = cluster(Some("gold"), None);
        cluster.spec.scheduling_mode = Some(scheduling);
        cluster.spec.node_groups = vec![
            NodeGroup::private("train", "h100", 1),
            NodeGroup {
                name: "build".into(),
                pool_name: "cpu".into(),
                mode: NodeMode::Shared,
                ..NodeGroup::default()
            },
        ];
        cluster
    };
    let listing = |pools: &'static [&str]| {
        move |_: &str| {
            let mut class = class("gold").as_ref().clone();
            class.spec.sync.shared_nodes.pools = pools.iter().map(ToString::to_string).collect();
            class.spec.sync.shared_nodes.user_namespaces = true;
            Some(Arc::new(class))
        }
    };
    for pools in [&["*"][..], &["other", "cpu"]] {
        let shared = resolve(&asking(SchedulingMode::Host), listing(pools))
            .unwrap()
            .sync
            .shared_nodes;
        assert_eq!((shared.pools, shared.user_namespaces), (vec!["cpu".to_owned()], true));
    }
    let rejection = resolve(&asking(SchedulingMode::Host), listing(&["other"])).unwrap_err();
    assert!(rejection.message.contains("shared pool cpu"), "{}", rejection.message);
    let rejection = resolve(&asking(SchedulingMode::Tenant), listing(&["*"])).unwrap_err();
    assert!(
        rejection.message.contains("spec.schedulingMode to Host"),
        "{}",
        rejection.message
    );
    // A tenant without such a group has none, whatever the class lists.
    let none = resolve(&cluster(Some("gold"), None), listing(&["*"])).unwrap();
    assert!(none.sync.shared_nodes.pools.is_empty());
}

#[test]
fn a_class_limits_routes() {
    let mut cluster = cluster(Some("gold"), None);
    let rules = r#"{"allow": [{"cidr": "10.20.0.0/16"}]}"#;
    cluster.spec.network.egress = serde_json::from_str(rules).unwrap();
    let rejection = resolve(&cluster, with(&["gold"])).unwrap_err();
    assert_eq!(rejection.reason, "NetworkNotAllowed");
    assert!(
        rejection.message.starts_with("spec.network.egress.allow[0]: "),
        "{}",
        rejection.message
    );
    let open = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.network.egress.allowed_cidrs = vec!["10.0.0.0/8".into()];
        Some(Arc::new(class))
    };
    assert_eq!(resolve(&cluster, open).unwrap().network.egress.len(), 1);
}

#[test]
fn a_class_decides_who_is_registered_in_argo_cd() {
    let asking = |spec: &str| {
        let mut cluster = cluster(Some("gold"), None);
        cluster.metadata.namespace = Some("team-a".into());
        cluster.spec.integrations = serde_json::from_str(spec).unwrap();
        cluster
    };
    let offering = |rules: &'static str| {
        move |_: &str| {
            let mut class = class("gold").as_ref().clone();
            class.spec.integrations = serde_json::from_str(rules).unwrap();
            Some(Arc::new(class))
        }
    };
    let own = r#"{"argoCD": {"registration": "OnRequest", "projects": ["{namespace}"]}}"#;
    let settings = resolve(&asking(r#"{"argoCD": {}}"#), offering(own)).unwrap();
    assert_eq!(settings.argo_cd.unwrap().project.as_deref(), Some("team-a"));
    let foreign = asking(r#"{"argoCD": {"project": "team-b"}}"#);
    let rejection = resolve(&foreign, offering(own)).unwrap_err();
    assert_eq!((rejection.kind, rejection.reason), (ACCEPTED, ARGO_CD_NOT_ALLOWED));
    let rejection = resolve(&asking(r#"{"argoCD": {}}"#), with(&["gold"])).unwrap_err();
    assert_eq!(rejection.reason, ARGO_CD_NOT_ALLOWED);
    assert_eq!(resolve(&asking("{}"), offering(own)).unwrap().argo_cd, None);

    // A tenant whose spec is not accepted keeps what it has, and a class that registers all registers it.
    let accepted = resolve(&asking("{}"), offering(own)).unwrap();
    let rules = r#"{"argoCD": {"registration": "Always", "projects": ["shared"], "server": "Gateway"}}"#;
    assert_eq!(accepted.argo_cd_server, ArgoCdServer::Service);
    let always = offering(rules)("gold").unwrap();
    let held = under_rules(accepted, &asking("{}"), &always.spec);
    assert_eq!(held.argo_cd_server, ArgoCdServer::Gateway);
    assert_eq!(held.argo_cd.clone().unwrap().project.as_deref(), Some("shared"));
    let never = class("gold");
    assert_eq!(
        under_rules(held.clone(), &asking("{}"), &never.spec).argo_cd,
        held.argo_cd
    );
}

#[test]
fn a_registration_goes_with_the_request_also_of_a_spec_that_is_not_accepted() {
    let mut asking = cluster(Some("gold"), None);
    asking.spec.integrations = serde_json::from_str(r#"{"argoCD": {}}"#).unwrap();
    let silent = cluster(Some("gold"), None);
    let offering = |registration: &str| {
        let mut class = class("gold").as_ref().clone();
        let rules = json!({"argoCD": {"registration": registration}});
        class.spec.integrations = serde_json::from_value(rules).unwrap();
        Arc::new(class)
    };
    let (on_request, always) = (offering("OnRequest"), offering("Always"));
    let accepted = |cluster: &TenantCluster, class: &Arc<TenantClass>| {
        let class = Arc::clone(class);
        resolve(cluster, move |_| Some(Arc::clone(&class))).unwrap()
    };
    let is_kept = |accepted: &Settings, cluster: &TenantCluster, rules: Option<&TenantClassSpec>| {
        without_removed(accepted.clone(), cluster, rules).argo_cd.is_some()
    };
    let own = accepted(&asking, &on_request);
    for rules in [Some(&on_request.spec), None] {
        assert!(is_kept(&own, &asking, rules));
        assert!(!is_kept(&own, &silent, rules));
    }
    // Whom the class registers, no spec takes away. A class that is gone took nothing away either.
    let of_class = accepted(&silent, &always);
    for rules in [Some(&on_request.spec), Some(&always.spec), None] {
        assert!(is_kept(&of_class, &silent, rules));
    }
    let held = under_rules(accepted(&asking, &always), &silent, &always.spec);
    assert!(held.argo_cd.is_some() && held.argo_cd_from_class);
    // What was taken away is recorded, and does not come back with the request.
    let taken = under_rules(own, &silent, &on_request.spec);
    assert_eq!(taken.argo_cd, None);
    assert_eq!(under_rules(taken, &asking, &on_request.spec).argo_cd, None);
}

#[test]
fn a_class_that_contradicts_itself_is_not_used() {
    let broken = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.network.blocked_cidrs = vec!["10.0.0.0/99".into()];
        Some(Arc::new(class))
    };
    let rejection = resolve(&cluster(Some("gold"), None), broken).unwrap_err();
    assert_eq!(rejection.reason, "InvalidClass");
    assert!(rejection.message.contains("blockedCIDRs"), "{}", rejection.message);
}

#[test]
fn a_class_limits_issuers() {
    let mut cluster = cluster(Some("gold"), None);
    let rules = r#"{"jwt": [{"issuer": {"url": "https://id.example.com", "audiences": ["a"]},
        "claimMappings": {"username": {"claim": "sub", "prefix": ""}}}]}"#;
    cluster.spec.authentication = serde_json::from_str(rules).unwrap();
    let rejection = resolve(&cluster, with(&["gold"])).unwrap_err();
    assert_eq!(rejection.reason, AUTHENTICATION_NOT_ALLOWED);
    assert!(
        rejection.message.starts_with("spec.authentication.jwt[0].issuer: "),
        "{}",
        rejection.message
    );
    let open = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.authentication.allowed_issuers = vec!["https://id.example.com".into()];
        Some(Arc::new(class))
    };
    let settings = resolve(&cluster, open).unwrap();
    assert!(!settings.authentication.from_class);
    // The class changes while the spec cannot be carried out: what the tenant set stays, until it is withdrawn.
    let held = under_rules(settings, &cluster, &class("gold").spec);
    assert_eq!(held.authentication.rules.jwt.len(), 1);
}

#[test]
fn a_spec_that_is_not_accepted_takes_people_away_and_adds_none() {
    let mut cluster = cluster(Some("gold"), None);
    let jwt = |url: &str| json!({"issuer": {"url": url, "audiences": ["a"]}, "claimMappings": {"username": {"claim": "sub", "prefix": "x:"}}});
    let set = |cluster: &mut TenantCluster, jwt: Value, admins: &[&str]| {
        let admins: Vec<Value> = admins
            .iter()
            .map(|name| json!({"kind": "User", "name": name}))
            .collect();
        cluster.spec.authentication = serde_json::from_value(json!({ "jwt": jwt })).unwrap();
        cluster.spec.access = serde_json::from_value(json!({ "admins": admins })).unwrap();
    };
    let (a, b) = (jwt("https://a.auth.svc"), jwt("https://b.auth.svc"));
    set(&mut cluster, json!([a, b]), &["ada", "eve"]);
    let accepted = resolve(&cluster, with(&["gold"])).unwrap();
    set(&mut cluster, json!([b, jwt("https://c.auth.svc")]), &["ada", "mallory"]);
    let held = [
        under_rules(accepted.clone(), &cluster, &class("gold").spec),
        // Its class is gone.
        without_removed(accepted, &cluster, None),
    ];
    for settings in held {
        let names: Vec<&str> = settings.access.admins.iter().map(|one| one.name.as_str()).collect();
        let issuers = settings.authentication.rules.jwt.iter();
        let issuers: Vec<&str> = issuers.map(|one| one.issuer.url.as_str()).collect();
        assert_eq!((names, issuers), (vec!["ada"], vec!["https://b.auth.svc"]));
    }
}

#[test]
fn a_class_limits_how_long_tokens_are_valid() {
    let cluster = cluster(Some("gold"), None);
    let longer = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.authentication.service_account_max_token_expiration = Some("48h".into());
        Some(Arc::new(class))
    };
    let settings = resolve(&cluster, longer).unwrap();
    assert_eq!(settings.max_token_seconds, 48 * 3600);
    // It holds for tenants whose spec is not accepted, and for those that an earlier version recorded.
    let held = under_rules(settings.clone(), &cluster, &class("gold").spec);
    assert_eq!(held.max_token_seconds, 24 * 3600);
    let mut recorded = serde_json::to_value(settings).unwrap();
    recorded.as_object_mut().unwrap().remove("maxTokenSeconds").unwrap();
    let read: Settings = serde_json::from_value(recorded).unwrap();
    assert_eq!(read.max_token_seconds, 24 * 3600);
}

#[test]
fn a_class_says_what_is_audited_also_for_tenants_whose_spec_is_not_accepted() {
    let cluster = cluster(Some("gold"), None);
    let audited = |_: &str| {
        let mut class = class("gold").as_ref().clone();
        class.spec.audit = Some(serde_json::from_value(json!({"preset": "Writes"})).unwrap());
        Some(Arc::new(class))
    };
    let settings = resolve(&cluster, audited).unwrap();
    assert_eq!(settings.audit, audited("gold").unwrap().spec.audit);
    let recorded = serde_json::to_value(&settings).unwrap();
    assert_eq!(recorded["audit"], json!({"preset": "Writes"}));
    // No spec keeps a rule of the class away, and none keeps one that is gone.
    let held = under_rules(settings, &cluster, &class("gold").spec);
    assert_eq!(held.audit, None);
    let held = under_rules(held, &cluster, &audited("gold").unwrap().spec);
    assert_eq!(held.audit, audited("gold").unwrap().spec.audit);
}

/// Otherwise an upgrade of Berth would replace API servers, and a class that is deleted would end audit logs and decrypt what tenants store.
#[test]
fn records_without_audit_and_encryption_are_as_before_and_those_with_them_outlast_their_class() {
    let cluster = cluster(Some("gold"), None);
    let rules = |name: &str| {
        let mut class = class(name).as_ref().clone();
        class.spec.audit = Some(serde_json::from_value(json!({"preset": "Writes"})).unwrap());
        class.spec.encryption = Some(ClassEncryption::default());
        Some(Arc::new(class))
    };
    let settings = resolve(&cluster, rules).unwrap();
    assert!(settings.audit.is_some() && settings.encryption.is_some());
    let mut recorded = serde_json::to_value(&settings).unwrap();
    let read: Settings = serde_json::from_value(recorded.clone()).unwrap();
    assert_eq!(without_removed(read, &cluster, None), settings);
    for field in ["audit", "encryption"] {
        assert!(recorded.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    }
    let read: Settings = serde_json::from_value(recorded.clone()).unwrap();
    assert_eq!((&read.audit, &read.encryption), (&None, &None));
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        recorded,
        "it is not written again"
    );
    let held = under_rules(read, &cluster, &rules("gold").unwrap().spec);
    assert_eq!((&held.audit, &held.encryption), (&settings.audit, &settings.encryption));
}
