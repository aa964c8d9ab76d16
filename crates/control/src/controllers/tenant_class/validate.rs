//! Whether the rules of a class are valid: pure. The schema rejects most errors already; this finds errors of classes that
//! were stored before the schema rejected them, or on a host that cannot check them.

use crate::{authentication, control_plane::find_audit_error, network::allowed};
use berth_api::{
    ClassAudit, ClassAuthentication, ClassEncryption, ClassSnapshots, KubernetesVersion, SyncPolicy, TenantClassSpec,
    dns_server, hostnames,
    sync_policy::{EXTRA_CAPABILITIES, ServiceAccountMapping, SyncedKind},
};
use berth_schedules::Recurrence;
use berth_sync_rules::{egress::target::Target, registry, translation::device_variables::is_device_variable};
use std::{collections::BTreeSet, net::IpAddr};

/// API groups whose objects are never synced to the host, even if control has the rights for its own work.
const POWERFUL_GROUPS: [&str; 8] = [
    berth_api::GROUP,
    "rbac.authorization.k8s.io",
    "authorization.k8s.io",
    "authentication.k8s.io",
    "certificates.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
];

/// Part of the audiences that API servers have by default.
const API_SERVER_AUDIENCE: &str = "kubernetes.default.svc";

/// Whether the rules of a class are valid.
///
/// # Errors
/// The field that contradicts another or cannot be read, and why.
pub fn validate(spec: &TenantClassSpec) -> Result<(), String> {
    find_error(spec).map_or(Ok(()), Err)
}

fn find_error(spec: &TenantClassSpec) -> Option<String> {
    let TenantClassSpec {
        // Checked together.
        versions: _,
        default_version: _,
        scheduling_mode: _,
        control_plane: _,
        authentication: sign_in,
        audit,
        sync,
        dns,
        network: border,
        limits,
        encryption,
        // Their schemas check everything.
        allowed_namespaces: _,
        enforcement_grace_period: _,
        fair_sharing: _,
        quotas: _,
        manifests: _,
        integrations: _,
        sleep: _,
        snapshots,
        expiration,
        idle_reclaim,
    } = spec;
    let of_storage = || find_error_in_encryption(encryption.as_ref()).or_else(|| find_error_in_snapshots(snapshots));
    if let Some(error) = find_error_in_versions(spec).or_else(of_storage) {
        return Some(error);
    }
    if let Some((field, bad)) = limits.find_invalid_quantity() {
        return Some(format!("spec.limits.{field}: {bad:?} is not a quantity such as 50Gi"));
    }
    if let Some((default, max)) = expiration.find_contradiction() {
        return Some(format!("spec.expiration: {default} must not be greater than {max}"));
    }
    if let Some((field, bad)) = idle_reclaim.find_invalid_value() {
        return Some(format!(
            "spec.idleReclaim.{field}: {bad:?} is not an amount such as 2.50"
        ));
    }
    if let Some(error) = find_error_in_authentication(sign_in) {
        return Some(format!("spec.authentication.{error}"));
    }
    if let Some(error) = find_error_in_audit(audit.as_ref(), encryption.as_ref()) {
        return Some(error);
    }
    let SyncPolicy {
        pods,
        services: _,
        service_accounts,
        kinds,
        storage: _,
        ingress,
        devices: _,
        shared_nodes: _,
    } = sync;
    if pods.priority.is_some_and(|band| band.lowest >= band.highest) {
        return Some("spec.sync.pods.priority: lowest must be less than highest".into());
    }
    if let Some(name) = pods.device_variables.iter().find(|name| !is_device_variable(name)) {
        return Some(format!(
            "spec.sync.pods.deviceVariables: tenants may set {name} anyway; remove it"
        ));
    }
    let is_extra = |name: &&String| EXTRA_CAPABILITIES.contains(&name.as_str());
    if let Some(name) = pods.capabilities.iter().find(|name| !is_extra(name)) {
        return Some(format!(
            "spec.sync.pods.capabilities: {name} cannot be given to tenants, only {}",
            EXTRA_CAPABILITIES.join(", ")
        ));
    }
    let is_unknown = |name: &&String| !hostnames::has_only_known_placeholders(name);
    if let Some(bad) = ingress.hostnames.iter().find(is_unknown) {
        return Some(format!(
            "spec.sync.ingress.hostnames: {bad:?}: placeholders are {{tenant}} and {{namespace}}, each as a whole label"
        ));
    }
    let networks = [
        ("spec.network.endpointCIDRs", &border.endpoint_cidrs),
        ("spec.network.blockedCIDRs", &border.blocked_cidrs),
        ("spec.dns.serverCIDRs", &dns.server_cidrs),
    ];
    for (path, list) in networks {
        if let Some(bad) = list.iter().find(|text| !is_network(text)) {
            return Some(format!("{path}: {bad:?} is not a network such as 10.20.0.0/16"));
        }
    }
    if let Some(bad) = dns.upstreams.iter().find(|text| dns_server(text).is_none()) {
        return Some(format!(
            "spec.dns.upstreams: {bad:?} is not an address such as 10.0.0.53 or 10.0.0.53:5353"
        ));
    }
    if let Some(bad) = border.api_server_egress.hosts.iter().find(|text| !is_host(text)) {
        return Some(format!(
            "spec.network.apiServerEgress.hosts: {bad:?} is not a host such as hooks.example.com or hooks.example.com:8443"
        ));
    }
    if let Some(invalid) = allowed::validate_class_network(border) {
        return Some(invalid);
    }
    find_error_in_accounts(service_accounts).or_else(|| find_error_in_kinds(kinds))
}

fn find_error_in_snapshots(snapshots: &ClassSnapshots) -> Option<String> {
    let schedule = snapshots.schedule.as_ref()?;
    let error = Recurrence::parse(&schedule.cron, &schedule.time_zone).err()?;
    Some(format!("spec.snapshots.schedule: {error}"))
}

fn find_error_in_encryption(encryption: Option<&ClassEncryption>) -> Option<String> {
    let bad = encryption?.find_invalid_resource()?;
    Some(format!(
        "spec.encryption.resources: {bad:?} is neither secrets nor configmaps, nor a custom resource such as widgets.example.com of a group that does \
         not end with .k8s.io"
    ))
}

fn find_error_in_audit(audit: Option<&ClassAudit>, encryption: Option<&ClassEncryption>) -> Option<String> {
    let encrypted = encryption.into_iter().flat_map(|encryption| &encryption.resources);
    let encrypted: Vec<&str> = encrypted.map(String::as_str).collect();
    let error = find_audit_error(audit?, &encrypted)?;
    Some(format!("spec.audit.{error}"))
}

fn find_error_in_versions(spec: &TenantClassSpec) -> Option<String> {
    let is_malformed = |text: &&String| text.parse::<KubernetesVersion>().is_err();
    if let Some(bad) = spec.versions.iter().find(is_malformed) {
        return Some(format!("spec.versions: {bad:?} is not a version such as v1.37.1"));
    }
    let default = spec.default_version.as_ref()?;
    if is_malformed(&default) {
        return Some(format!(
            "spec.defaultVersion: {default:?} is not a version such as v1.37.1"
        ));
    }
    (!spec.allows_version(default)).then(|| format!("spec.defaultVersion: {default} is not one of spec.versions"))
}

fn find_error_in_authentication(rules: &ClassAuthentication) -> Option<String> {
    let default = authentication::find_error(&rules.default).map(|error| format!("default.{error}"));
    default.or_else(|| {
        let issuers = authentication::find_unusable_issuer(&rules.allowed_issuers);
        issuers.map(|error| format!("allowedIssuers: {error}"))
    })
}

fn find_error_in_kinds(kinds: &[SyncedKind]) -> Option<String> {
    let mut seen = BTreeSet::new();
    for kind in kinds {
        let name = format!("{}.{}", kind.kind, kind.group);
        if POWERFUL_GROUPS.contains(&kind.group.as_str()) {
            return Some(format!(
                "spec.sync.kinds: {name}: objects of this group decide on rights or rules on the host and cannot be \
                 synced"
            ));
        }
        if registry::is_built_in(kind) {
            return Some(format!(
                "spec.sync.kinds: {name} is synced by rules of its own; remove it"
            ));
        }
        // The host would reject the ResourceQuota with this name.
        if kind.quota_resource().is_none() {
            return Some(format!(
                "spec.sync.kinds: {name}: the host cannot count its objects, because {}.{} is no name of at most 63 letters, digits, \
                 '-', '_' and '.' that begins and ends with a letter or digit",
                kind.resource, kind.group
            ));
        }
        if !seen.insert((&kind.group, &kind.kind)) {
            return Some(format!("spec.sync.kinds: {name} is listed twice"));
        }
    }
    None
}

fn find_error_in_accounts(mappings: &[ServiceAccountMapping]) -> Option<String> {
    let mut accounts = BTreeSet::new();
    for ServiceAccountMapping {
        namespace,
        name,
        host_name: _,
        audiences,
    } in mappings
    {
        if !accounts.insert((namespace, name)) {
            return Some(format!("spec.sync.serviceAccounts: {namespace}/{name} is mapped twice"));
        }
        if let Some(audience) = audiences.iter().find(|text| text.contains(API_SERVER_AUDIENCE)) {
            return Some(format!(
                "spec.sync.serviceAccounts: {namespace}/{name}: tokens for {audience:?} open the host's API server; remove \
                 the audience"
            ));
        }
    }
    None
}

/// `host` or `host:port`, as the syncer reads it.
fn is_host(text: &str) -> bool {
    Target::parse(text).is_ok() || Target::parse(&format!("{text}:443")).is_ok()
}

fn is_network(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else {
        return false;
    };
    let longest = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    prefix.parse::<u8>().is_ok_and(|prefix| prefix <= longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::sync_policy::{PriorityBand, SyncedKind};

    fn error_of(change: impl FnOnce(&mut TenantClassSpec)) -> String {
        let mut spec = TenantClassSpec::default();
        change(&mut spec);
        find_error(&spec).unwrap_or_default()
    }

    #[test]
    fn an_empty_class_and_a_full_one_are_fine() {
        assert_eq!(validate(&TenantClassSpec::default()), Ok(()));
        let fine = error_of(|spec| {
            spec.versions = vec!["v1.37.1".into()];
            spec.default_version = Some("v1.37.1".into());
            spec.network.endpoint_cidrs = vec!["10.0.0.0/8".into(), "fd00::/8".into(), "0.0.0.0/0".into()];
            spec.sync.pods.device_variables = vec!["NVIDIA_GDS".into(), "CUDA_VERSION".into()];
        });
        assert_eq!(fine, "");
    }

    #[test]
    fn a_schedule_of_snapshots_that_cannot_be_read_is_an_error() {
        let with = |cron: &str, zone: &str| {
            error_of(|spec| {
                let schedule = serde_json::json!({"cron": cron, "timeZone": zone});
                spec.snapshots.schedule = Some(serde_json::from_value(schedule).unwrap());
            })
        };
        assert_eq!(with("0 2 * * *", "Europe/Berlin"), "");
        for (cron, zone) in [("0 2 * *", "UTC"), ("0 0 30 2 *", "UTC"), ("0 2 * * *", "Mars")] {
            let message = with(cron, zone);
            assert!(message.starts_with("spec.snapshots.schedule: "), "{message}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        for bad in ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8", "10.0.0.0/-1", ""] {
            let message = error_of(|spec| spec.network.endpoint_cidrs = vec![bad.into()]);
            assert!(message.starts_with("spec.network.endpointCIDRs: "), "{bad}: {message}");
        }
        let message = error_of(|spec| spec.network.endpoint_cidrs = vec!["169.254.169.254/32".into()]);
        assert!(message.contains("is never open"), "{message}");
        let message = error_of(|spec| spec.dns.upstreams = vec!["10.0.0.53".into(), "dns.example.com".into()]);
        assert!(
            message.starts_with("spec.dns.upstreams: \"dns.example.com\""),
            "{message}"
        );
        for bad in ["https://hooks.example.com", "127.1", "hooks.example.com:0", "*", ""] {
            let message = error_of(|spec| spec.network.api_server_egress.hosts = vec![bad.into()]);
            assert!(
                message.starts_with("spec.network.apiServerEgress.hosts: "),
                "{bad}: {message}"
            );
        }
        let message = error_of(|spec| spec.limits.datastore_bytes = "much".into());
        assert!(message.starts_with("spec.limits.datastoreBytes: "), "{message}");
        let message = error_of(|spec| spec.versions = vec!["1.37".into()]);
        assert!(message.starts_with("spec.versions: "), "{message}");
        let resources = vec!["namespaces".into()];
        let message = error_of(|spec| spec.encryption = Some(ClassEncryption { resources }));
        assert!(message.starts_with("spec.encryption.resources: "), "{message}");
        for (default, versions, expected) in [
            ("1.37", &[][..], "is not a version"),
            ("v1.37.1", &["v1.36.4"][..], "is not one of spec.versions"),
        ] {
            let message = error_of(|spec| {
                spec.default_version = Some(default.into());
                spec.versions = versions.iter().map(ToString::to_string).collect();
            });
            assert!(
                message.starts_with("spec.defaultVersion: ") && message.contains(expected),
                "{message}"
            );
        }
        let message = error_of(|spec| spec.sync.pods.priority = Some(PriorityBand { lowest: 5, highest: 5 }));
        assert!(message.starts_with("spec.sync.pods.priority: "), "{message}");
        let message = error_of(|spec| spec.sync.pods.device_variables = vec!["NVIDIA_GDS".into(), "HOME".into()]);
        assert!(
            message.starts_with("spec.sync.pods.deviceVariables: tenants may set HOME"),
            "{message}"
        );
        let message = error_of(|spec| spec.sync.pods.capabilities = vec!["IPC_LOCK".into(), "SYS_ADMIN".into()]);
        assert!(
            message.starts_with("spec.sync.pods.capabilities: SYS_ADMIN"),
            "{message}"
        );
        let message = error_of(|spec| spec.sync.ingress.hostnames = vec!["*.app-{tenant}.example.com".into()]);
        assert!(message.starts_with("spec.sync.ingress.hostnames: "), "{message}");
        for bad in ["https://127.0.0.1", "https://localhost:8443", "http://id.example.com"] {
            let message = error_of(|spec| spec.authentication.allowed_issuers = vec![bad.into()]);
            assert!(
                message.starts_with("spec.authentication.allowedIssuers: "),
                "{bad}: {message}"
            );
        }
        let message = error_of(|spec| spec.authentication.default.jwt = vec![berth_api::JwtAuthenticator::default()]);
        assert!(
            message.starts_with("spec.authentication.default.jwt[0].issuer.url: "),
            "{message}"
        );
        let message = error_of(|spec| spec.audit = Some(berth_api::ClassAudit::default()));
        assert!(message.starts_with("spec.audit.preset: "), "{message}");
        let mapping = ServiceAccountMapping {
            namespace: "a".into(),
            name: "b".into(),
            host_name: "c".into(),
            audiences: Vec::new(),
        };
        let message = error_of(|spec| spec.sync.service_accounts = vec![mapping.clone(), mapping.clone()]);
        assert!(message.contains("a/b is mapped twice"), "{message}");
        let message = error_of(|spec| {
            spec.sync.service_accounts = vec![ServiceAccountMapping {
                audiences: vec![
                    "sts.example.com".into(),
                    "https://kubernetes.default.svc.cluster.local".into(),
                ],
                ..mapping
            }];
        });
        assert!(message.contains("a/b: tokens for \"https://kubernetes"), "{message}");
        let kind = SyncedKind {
            group: "g".into(),
            kind: "K".into(),
            resource: "ks".into(),
            ..SyncedKind::default()
        };
        let message = error_of(|spec| spec.sync.kinds = vec![kind.clone(), kind]);
        assert!(message.contains("K.g is listed twice"), "{message}");
    }

    #[test]
    fn kinds_that_decide_on_rights_and_those_with_rules_of_their_own_cannot_be_listed() {
        let listed = |group: &str, kind: &str| {
            let kind = SyncedKind {
                group: group.into(),
                kind: kind.into(),
                resource: "things".into(),
                ..SyncedKind::default()
            };
            error_of(|spec| spec.sync.kinds = vec![kind])
        };
        let message = listed("rbac.authorization.k8s.io", "RoleBinding");
        assert!(message.contains("decide on rights"), "{message}");
        let message = listed("berth.dev", "TenantNode");
        assert!(message.contains("decide on rights"), "{message}");
        let message = listed("", "Pod");
        assert!(message.contains("rules of its own"), "{message}");
        assert_eq!(listed("scheduling.k8s.io", "PodGroup"), "");
    }

    #[test]
    fn kinds_whose_objects_the_host_cannot_count_cannot_be_listed() {
        let listed = |resource: &str, group: &str| {
            let kind = SyncedKind {
                group: group.into(),
                kind: "Widget".into(),
                resource: resource.into(),
                ..SyncedKind::default()
            };
            error_of(|spec| spec.sync.kinds = vec![kind])
        };
        let group = format!("{}.example.com", "g".repeat(63 - "widgets..example.com".len()));
        assert_eq!(listed("widgets", &group), "");
        for (resource, group) in [
            ("widgets", format!("g{group}")),
            ("widgets/status", "example.com".into()),
            ("widgets", "example.com.".into()),
            ("-widgets", "example.com".into()),
        ] {
            let message = listed(resource, &group);
            assert!(message.contains("cannot count its objects"), "{message}");
            assert!(message.contains(&format!("{resource}.{group} is no name")), "{message}");
        }
    }
}
