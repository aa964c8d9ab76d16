mod policies;

use super::{dns_customization::DnsCustomization, *};
use berth_api::{
    ClassAudit, DatastoreUsage, NetworkLimits, StorageOffer, SyncPolicy, TenantAuthentication, TenantLimits,
    names::TenantId,
};
use berth_pki::CertificateAuthority;
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

const PORTS: Ports = Ports {
    api_server: 6443,
    syncer_admin: 8080,
    admission: 8443,
    egress: 8444,
    dns: 5353,
};

struct Fixture {
    tenant: TenantId,
    endpoints: Endpoints,
    range: ServiceRange,
    scheduling: SchedulingMode,
    form: Form,
    datastore_usage: DatastoreUsage,
    limits_users: bool,
    policy: SyncPolicy,
    withdrawn_storage: BTreeSet<StorageOffer>,
    datastore: DatastoreInput,
    host: HostInput,
    dns: DnsInput,
    authorities: Authorities,
    authentication: TenantAuthentication,
    audit: Option<ClassAudit>,
}

impl Fixture {
    fn new() -> Self {
        let datastore_ca = CertificateAuthority::create("datastore", Duration::from_secs(365 * 24 * 3600)).unwrap();
        let stored = Authorities::create("abc").unwrap();
        Self {
            tenant: TenantId::new("vision", "6f2c"),
            endpoints: Endpoints::direct(Ipv4Addr::LOCALHOST.into(), &PORTS),
            range: ServiceRange {
                cidr: "10.96.0.48/29".into(),
                first: Ipv4Addr::new(10, 96, 0, 49).into(),
                secondary: None,
            },
            scheduling: SchedulingMode::Host,
            form: Form::Process,
            datastore_usage: DatastoreUsage::default(),
            limits_users: false,
            policy: SyncPolicy::default(),
            withdrawn_storage: BTreeSet::new(),
            datastore: DatastoreInput {
                endpoints: vec!["https://127.0.0.1:2379".into()],
                ca_pem: "ca".into(),
            },
            host: HostInput {
                server: "https://127.0.0.1:1".into(),
                ca_pem: "host-ca".into(),
                cluster_domain: "cluster.local".into(),
            },
            dns: DnsInput {
                address: [10, 96, 0, 50].into(),
                policy: berth_api::DnsPolicy::default(),
                blocked_domains: Vec::new(),
                customization: Some(DnsCustomization::default()),
            },
            authorities: Authorities::load(&stored, datastore_ca.cert_pem(), datastore_ca.key_pem()).unwrap(),
            authentication: TenantAuthentication::default(),
            audit: None,
        }
    }

    fn render(&self, leaves: &mut LeafStore) -> Vec<Component> {
        self.render_version("v1.37.1", leaves)
    }

    fn render_version(&self, version: &str, leaves: &mut LeafStore) -> Vec<Component> {
        let input = ControlPlaneInput {
            tenant: &self.tenant,
            version,
            class: "default",
            scheduling: self.scheduling,
            policy: &self.policy,
            withdrawn_storage: &self.withdrawn_storage,
            limits: &TenantLimits::default(),
            datastore_usage: self.datastore_usage,
            limits_users: self.limits_users,
            authentication: &self.authentication,
            max_token_seconds: 86_400,
            audit: self.audit.as_ref(),
            form: self.form,
            network: &NetworkLimits::default(),
            endpoints: &self.endpoints,
            service_range: &self.range,
            reserved_service_addresses: &["10.96.0.0/24".parse().unwrap()],
            datastore: &self.datastore,
            host: &self.host,
            dns: Some(&self.dns),
        };
        render_components(&input, &self.authorities, leaves).unwrap()
    }
}

#[test]
fn command_lines_are_as_reviewed() {
    let components = Fixture::new().render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
    let lines: BTreeMap<&str, Vec<String>> = components.iter().map(|c| (c.name, c.args_in("/files"))).collect();
    insta::assert_yaml_snapshot!(lines);
    let files: BTreeMap<&str, Vec<&String>> = components.iter().map(|c| (c.name, c.files.keys().collect())).collect();
    insta::assert_yaml_snapshot!(files);
}

#[test]
fn a_tenant_that_schedules_has_a_scheduler() {
    let mut fixture = Fixture::new();
    fixture.scheduling = SchedulingMode::Tenant;
    let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
    let scheduler = components.iter().find(|component| component.name == SCHEDULER).unwrap();
    insta::assert_yaml_snapshot!(scheduler.args_in("/files"));
    insta::assert_snapshot!(scheduler.files_in("/files")["config.yaml"]);
    let syncer = components.iter().find(|component| component.name == SYNCER).unwrap();
    assert!(syncer.args.contains(&"--scheduling=tenant".to_owned()));
    assert!(COMPONENTS.iter().all(|name| components.iter().any(|c| c.name == *name)));
}

#[test]
fn the_api_server_alone_has_an_audit_log_and_only_if_the_class_has_one() {
    let mut fixture = Fixture::new();
    let mut render = |audit: Option<&str>| {
        fixture.audit = audit.map(|text| serde_json::from_str(text).unwrap());
        fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()))
    };
    let flags = |component: &Component| -> Vec<String> {
        let args = component.args_in("/files").into_iter();
        args.filter(|arg| arg.contains("audit")).collect()
    };
    for component in render(None) {
        assert_eq!(flags(&component), [""; 0], "{}", component.name);
        assert!(!component.files.contains_key("audit.conf"), "{}", component.name);
    }
    for component in render(Some(r#"{"preset": "Metadata"}"#)) {
        let policy = component.files.get("audit.conf");
        assert_eq!(policy.is_some(), component.name == API_SERVER, "{}", component.name);
        assert_eq!(
            flags(&component).is_empty(),
            component.name != API_SERVER,
            "{}",
            component.name
        );
        if policy.is_some() {
            assert_eq!(
                flags(&component),
                [
                    "--audit-policy-file=/files/audit.conf",
                    "--audit-log-path=-",
                    "--audit-log-mode=batch",
                    "--audit-log-batch-buffer-size=1000",
                    "--audit-log-batch-max-size=1",
                    "--audit-log-batch-throttle-enable=false",
                    "--audit-log-truncate-enabled=true",
                    "--audit-log-truncate-max-event-size=65536",
                ]
            );
        }
    }
}

/// A slow etcd is slow for all tenants: nobody's API server starts again because of that. It gets no requests meanwhile if there is another one.
#[test]
fn the_datastore_decides_whether_an_api_server_is_ready_and_not_whether_it_lives() {
    let components = Fixture::new().render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
    let server = components
        .iter()
        .find(|component| component.name == API_SERVER)
        .unwrap();
    let health = server.health.unwrap();
    assert_eq!(health.live, "/livez?exclude=etcd");
    assert!(!health.ready.contains("etcd"), "{}", health.ready);
    // Probes have no credentials.
    let authentication: serde_json::Value = serde_json::from_str(&server.files["authentication.conf"]).unwrap();
    let anonymous = authentication["anonymous"]["conditions"].as_array().unwrap();
    for probe in [health.live, health.ready] {
        let (path, _) = probe.split_once('?').unwrap();
        assert!(anonymous.contains(&serde_json::json!({ "path": path })), "{path}");
    }
}

#[test]
fn programs_collect_garbage_equally_early_as_processes_and_as_pods() {
    let mut fixture = Fixture::new();
    for form in [Form::Process, Form::Pods { replicas: 1 }] {
        fixture.form = form;
        let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
        let growth: BTreeMap<&str, &str> = components
            .iter()
            .filter_map(|component| Some((component.name, component.env.get("GOGC")?.as_str())))
            .collect();
        let expected = [(API_SERVER, "40"), (CONTROLLER_MANAGER, "50")];
        assert_eq!(growth, BTreeMap::from(expected));
    }
}

#[test]
fn rendering_again_gives_the_same_bytes_until_a_renewal_is_due() {
    let fixture = Fixture::new();
    let now = Timestamp::now();
    let mut leaves = LeafStore::new(BTreeMap::new(), now);
    let first = fixture.render(&mut leaves);
    let stored = leaves.into_data();
    let mut soon = LeafStore::new(stored.clone(), now + SignedDuration::from_hours(24));
    assert_eq!(fixture.render(&mut soon), first);
    let mut late = LeafStore::new(stored, now + SignedDuration::from_hours(24 * 61));
    let renewed = fixture.render(&mut late);
    assert_ne!(renewed[0].files["tls.crt"], first[0].files["tls.crt"]);
    assert_eq!(renewed[0].files["client-ca.crt"], first[0].files["client-ca.crt"]);
}

#[test]
fn certificates_from_a_clock_that_was_ahead_are_replaced() {
    let fixture = Fixture::new();
    let now = Timestamp::now();
    let mut leaves = LeafStore::new(BTreeMap::new(), now);
    let first = fixture.render(&mut leaves);
    let stored = leaves.into_data();
    // Certificates are valid from five minutes before they are made.
    let mut behind = LeafStore::new(stored.clone(), now - SignedDuration::from_mins(4));
    assert_eq!(fixture.render(&mut behind), first);
    let mut far_behind = LeafStore::new(stored, now - SignedDuration::from_mins(10));
    let replaced = fixture.render(&mut far_behind);
    assert_ne!(replaced[0].files["tls.crt"], first[0].files["tls.crt"]);
    assert_eq!(replaced[0].files["client-ca.crt"], first[0].files["client-ca.crt"]);
}

#[test]
fn tokens_name_the_gateway_if_the_tenant_says_so_and_those_that_exist_stay_valid() {
    const GATEWAY: &str = "https://vision.team.clusters.example.com";
    let mut fixture = Fixture::new();
    let mut args = |gateway: Option<&str>, authentication: &str| {
        fixture.endpoints.gateway = gateway.map(Into::into);
        fixture.authentication = serde_json::from_str(authentication).unwrap();
        let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
        let values = |name: &str| -> Vec<String> {
            let args = components[0].args.iter();
            args.filter_map(|arg| arg.strip_prefix(name)).map(Into::into).collect()
        };
        let is_public = components[0].files["authentication.conf"].contains("/openid/v1/jwks");
        (
            values("--service-account-issuer="),
            values("--service-account-jwks-uri="),
            is_public,
        )
    };
    let (at_gateway, at_cluster) = (
        format!("{GATEWAY}/openid/v1/jwks"),
        format!("{SERVICE_ACCOUNT_ISSUER}/openid/v1/jwks"),
    );
    let gateway = r#"{"serviceAccountIssuer": "Gateway"}"#;
    for (url, authentication, issuers, keys, is_public) in [
        (None, "{}", vec![SERVICE_ACCOUNT_ISSUER], &at_cluster, false),
        (None, gateway, vec![SERVICE_ACCOUNT_ISSUER], &at_cluster, false),
        (
            Some(GATEWAY),
            "{}",
            vec![SERVICE_ACCOUNT_ISSUER, GATEWAY],
            &at_cluster,
            false,
        ),
        (
            Some(GATEWAY),
            gateway,
            vec![GATEWAY, SERVICE_ACCOUNT_ISSUER],
            &at_gateway,
            true,
        ),
    ] {
        let issuers: Vec<String> = issuers.into_iter().map(String::from).collect();
        assert_eq!(
            args(url, authentication),
            (issuers, vec![keys.clone()], is_public),
            "{url:?} {authentication}"
        );
    }
    // An issuer of people with the same URL would keep the API server from starting.
    let taken = format!(
        r#"{{"serviceAccountIssuer": "Gateway", "jwt": [{{"issuer": {{"url": "{GATEWAY}", "audiences": ["a"]}},
            "claimMappings": {{"username": {{"claim": "sub", "prefix": ""}}}}}}]}}"#
    );
    assert_eq!(args(Some(GATEWAY), &taken).0, [SERVICE_ACCOUNT_ISSUER]);
}

#[test]
fn a_change_of_address_renews_only_the_serving_certificate() {
    let mut fixture = Fixture::new();
    let mut leaves = LeafStore::new(BTreeMap::new(), Timestamp::now());
    let first = fixture.render(&mut leaves);
    fixture.endpoints.api_server = Endpoint::direct(([10, 0, 0, 1], 6443).into());
    let mut leaves = LeafStore::new(leaves.into_data(), Timestamp::now());
    let second = fixture.render(&mut leaves);
    assert_ne!(second[0].files["tls.crt"], first[0].files["tls.crt"]);
    assert_eq!(
        second[0].files["datastore-client.crt"],
        first[0].files["datastore-client.crt"]
    );
}

#[test]
fn no_component_but_the_api_server_gets_its_keys_and_only_the_syncer_a_ca_key() {
    let fixture = Fixture::new();
    let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
    for component in &components {
        for (name, text) in &component.files {
            for authority in [
                &fixture.authorities.server,
                &fixture.authorities.client,
                &fixture.authorities.front_proxy,
                &fixture.authorities.admission,
                &fixture.authorities.egress,
                &fixture.authorities.datastore,
            ] {
                assert!(
                    !text.contains(authority.key_pem().trim()),
                    "{}: {name} holds a CA's key",
                    component.name
                );
            }
        }
    }
    let kubelet_key = fixture.authorities.kubelet.key_pem().trim();
    let has_it = |component: &&Component| component.files.values().any(|text| text.contains(kubelet_key));
    let with_kubelet_key: Vec<&str> = components
        .iter()
        .filter(has_it)
        .map(|component| component.name)
        .collect();
    assert_eq!(with_kubelet_key, [SYNCER], "it signs for the tenant's nodes");
    assert!(
        !components[2].files.keys().any(|name| name.contains("service-account")),
        "the syncer signs no tokens"
    );
}

#[test]
fn the_syncer_knows_whether_users_are_stamped_and_limited() {
    let users = |version: &str, limits_users: bool| {
        let mut fixture = Fixture::new();
        fixture.limits_users = limits_users;
        let components = fixture.render_version(version, &mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
        let syncer = components
            .into_iter()
            .find(|component| component.name == SYNCER)
            .unwrap();
        syncer.args.into_iter().find(|arg| arg.starts_with("--users="))
    };
    assert_eq!(users("v1.37.1", false).as_deref(), Some("--users=stamped"));
    assert_eq!(users("v1.37.1", true).as_deref(), Some("--users=stamped,limited"));
    assert_eq!(users("v1.36.4", true).as_deref(), Some("--users=limited"));
    assert_eq!(users("v1.36.4", false), None);
}

#[test]
fn the_syncer_of_limited_users_knows_how_many_of_their_pods_may_wait_on_the_host() {
    let waiting = |limits_users: bool| {
        let mut fixture = Fixture::new();
        fixture.limits_users = limits_users;
        let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
        let mut args = components.into_iter().flat_map(|component| component.args);
        args.find(|arg| arg.starts_with("--waiting-pods-of-user"))
    };
    assert_eq!(waiting(true).as_deref(), Some("--waiting-pods-of-user=100"));
    assert_eq!(waiting(false), None, "no syncer restarts for it");
}

#[test]
fn the_syncer_knows_withdrawn_storage_and_has_memory_for_the_largest_tenant() {
    let mut fixture = Fixture::new();
    let mut render = |withdrawn: &[&str]| {
        fixture.withdrawn_storage = withdrawn.iter().map(|offer| offer.parse().unwrap()).collect();
        let components = fixture.render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
        components
            .into_iter()
            .find(|component| component.name == SYNCER)
            .unwrap()
    };
    let flag = |syncer: &Component| {
        let found = syncer.args.iter().find(|arg| arg.starts_with("--withdrawn-storage"));
        found.cloned()
    };
    let syncer = render(&[]);
    assert_eq!(flag(&syncer), None);
    let mib = syncer.memory_limit.unwrap() >> 20;
    // 15,000 pods, 512 MiB in the datastore, what is served beside it, and names of other objects.
    assert!((1650..1950).contains(&mib), "{mib}");
    let withdrawn = ["VolumeAttributesClass/gold", "StorageClass/slow", "StorageClass/fast"];
    let expected = "--withdrawn-storage=StorageClass/fast,StorageClass/slow,VolumeAttributesClass/gold";
    assert_eq!(flag(&render(&withdrawn)).as_deref(), Some(expected));
}
