//! The tenant's syncer: on the host a service account of the control-plane namespace, in the tenant a client
//! certificate with exactly the permissions that `berth_sync_rules::permissions` lists.

use super::{
    admission,
    certificates::{Authorities, CertificateError, Leaf, LeafStore, TENANT_USER},
    component::{Component, FILES, Health, Program, SYNCER, file_flag, flag},
    egress,
    input::ControlPlaneInput,
};
use berth_api::{BYTES_OF_REFERENCE, SchedulingMode, TenantLimits, extension_bytes, most_references};
use berth_kubernetes_versions::features;
use berth_pki::{
    Usage,
    kubeconfig::{Credential, KubeconfigRequest, kubeconfig},
};
use std::collections::BTreeMap;

/// Memory of a syncer without objects, and for what comes and goes: idle it has 17 to 20 MiB (docs/operations/performance.md), an object
/// or an answer of the tenant may take 64 MiB while it is read (`MAX_TREE` of `berth_runtime::answers`), objects that have just changed 64 MiB (`Fresh`
/// of `berth_sync_rules::model`), contents of ConfigMaps and Secrets 128 MiB (`ContentRoom` of `berth_syncer::engine`), and each of 42 objects that are worked
/// on at the same time 16 MiB if a tenant writes as large ones as it can (`MAX_TENANT_TREE` of `berth_syncer::store`), while it has less of others.
const BASE_MEMORY: u64 = 512 << 20;
/// Memory for a pod: 12 KiB were measured for a small one.
const MEMORY_OF_POD: u64 = 16 << 10;

/// Bytes that a syncer needs at most: it keeps the objects of its tenant, whose sizes and number the class limits, and more of pods. A tenant
/// can exceed its limit in the datastore by a tenth, and until it is measured again. What servers of the tenant's own list is not in its
/// datastore: the syncer keeps [`extension_bytes`] of that, and as much again of what becomes of it on the host. Nor does the size of objects say how many
/// others they name.
fn memory_limit(limits: &TenantLimits) -> u64 {
    let objects = limits.datastore_size();
    BASE_MEMORY
        .saturating_add(u64::from(limits.pods).saturating_mul(MEMORY_OF_POD))
        .saturating_add(objects.saturating_add(objects / 4))
        .saturating_add(extension_bytes(limits.host_size()).saturating_mul(2))
        .saturating_add(most_references(limits.host_size()).saturating_mul(BYTES_OF_REFERENCE))
}

/// What the class lets the tenant write, and its objects on the host.
fn limit_flags(limits: &TenantLimits) -> [String; 7] {
    [
        flag("waiting-pods", limits.waiting_pods),
        flag("write-bytes-per-second", limits.write_rate()),
        flag("host-bytes", limits.host_size()),
        flag("host-write-bytes-per-second", limits.host_write_rate()),
        flag("endpoint-changes-per-second", limits.endpoint_changes_per_second),
        flag("controller-requests-per-second", limits.controller_requests_per_second),
        flag("resource-claims", limits.resource_claims),
    ]
}

pub(super) fn render(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Component, CertificateError> {
    let identity = Leaf::new(TENANT_USER, Usage::Client);
    let mut files = BTreeMap::new();
    leaves
        .issue(&authorities.client, SYNCER, &identity)?
        .put(&mut files, "client");
    files.insert(
        "tenant.kubeconfig".into(),
        authorities.kubeconfig_from_files(&input.endpoints.api_server.https_url())?,
    );
    admission::for_syncer(input, authorities, leaves, &mut files)?;
    let egress = egress::for_syncer(input, authorities, leaves, &mut files)?;
    let host = KubeconfigRequest {
        cluster_name: "host".into(),
        server: input.host.server.clone(),
        ca_pem: input.host.ca_pem.clone(),
        user: Credential::TokenFile(format!("{FILES}/token").into()),
        namespace: Some(input.tenant.workload_namespace()),
    };
    files.insert("host.kubeconfig".into(), kubeconfig(&host)?);
    // Serialization cannot fail: there are only texts, numbers and lists. A change restarts the syncer.
    let policy = serde_json::to_string_pretty(input.policy).unwrap_or_default();
    files.insert("policy.json".into(), policy);
    let network = serde_json::to_string_pretty(input.network).unwrap_or_default();
    files.insert("network.json".into(), network);
    let scheduling = match input.scheduling {
        SchedulingMode::Host => "host",
        SchedulingMode::Tenant => "tenant",
    };
    let mut args = vec![
        file_flag("host-kubeconfig", "host.kubeconfig"),
        file_flag("tenant-kubeconfig", "tenant.kubeconfig"),
        flag("tenant-id", input.tenant.slug()),
        flag("workload-namespace", input.tenant.workload_namespace()),
        flag("control-plane-namespace", input.tenant.control_plane_namespace()),
        file_flag("policy", "policy.json"),
        file_flag("network", "network.json"),
        flag("scheduling", scheduling),
        flag("class-name", input.class),
        // What pods find in KUBERNETES_SERVICE_HOST and _PORT: the address of default/kubernetes.
        flag("api-server-host", input.service_range.first),
        flag("api-server-port", "443"),
        flag("admin-address", input.endpoints.syncer_admin.listen),
        flag("admission-address", input.endpoints.admission.listen),
        flag("admission-authority", input.endpoints.admission.authority()),
        file_flag("admission-cert", &format!("{}.crt", admission::CERTIFICATE)),
        file_flag("admission-key", &format!("{}.key", admission::CERTIFICATE)),
        file_flag("admission-ca", admission::AUTHORITY),
    ];
    args.extend(limit_flags(input.limits));
    let users: Vec<&str> = [
        (features::static_admission_policies(input.version), "stamped"),
        (input.limits_users, "limited"),
    ]
    .into_iter()
    .filter_map(|(holds, value)| holds.then_some(value))
    .collect();
    if !users.is_empty() {
        args.push(flag("users", users.join(",")));
    }
    if input.limits_users {
        args.push(flag("waiting-pods-of-user", input.limits.waiting_pods_of_user()));
    }
    if !input.withdrawn_storage.is_empty() {
        let names: Vec<String> = input.withdrawn_storage.iter().map(ToString::to_string).collect();
        args.push(flag("withdrawn-storage", names.join(",")));
    }
    if !input.reserved_service_addresses.is_empty() {
        let networks: Vec<String> = input
            .reserved_service_addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        args.push(flag("reserved-service-addresses", networks.join(",")));
    }
    args.extend(input.dns.map(|dns| flag("dns-address", dns.address)));
    args.extend(egress);
    Ok(Component {
        name: SYNCER,
        program: Program::Syncer,
        args,
        env: BTreeMap::new(),
        files,
        host_service_account: Some(SYNCER),
        memory_limit: Some(memory_limit(input.limits)),
        // It holds no lease, so there must never be a second one.
        replicas: 1,
        overlaps: false,
        health: Some(Health {
            port: input.endpoints.syncer_admin.listen.port(),
            tls: false,
            live: "/healthz",
            ready: "/readyz",
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MiB of a class with these limits.
    fn mebibytes(host_bytes: &str, datastore_bytes: &str) -> u64 {
        let limits = TenantLimits {
            host_bytes: host_bytes.into(),
            datastore_bytes: datastore_bytes.into(),
            ..TenantLimits::default()
        };
        memory_limit(&limits) >> 20
    }

    #[test]
    fn a_syncer_has_memory_for_what_servers_of_the_tenant_list() {
        let default = mebibytes("512Mi", "512Mi");
        assert_eq!(default, 512 + 234 + 640 + 256 + 160);
        assert_eq!(mebibytes("1Mi", "512Mi"), default, "it keeps 128 MiB in any case");
        assert_eq!(mebibytes("8Gi", "512Mi"), default + 2 * (2048 - 128) + 15 * 160);
        // What the datastore may have is no substitute: nothing of that is in it.
        assert_eq!(mebibytes("8Gi", "4Mi"), 512 + 234 + 5 + 2 * 2048 + 16 * 160);
        for host_bytes in ["1Mi", "512Mi", "8Gi", "1Ti"] {
            let limits = TenantLimits {
                host_bytes: host_bytes.into(),
                ..TenantLimits::default()
            };
            let kept = extension_bytes(limits.host_size());
            assert!(memory_limit(&limits) > BASE_MEMORY + 2 * kept, "{host_bytes}");
        }
    }
}
