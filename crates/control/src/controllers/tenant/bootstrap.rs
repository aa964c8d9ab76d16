//! Objects that Berth puts into every tenant before it is called ready.

use super::{SERVICE_CIDR_NAME, dns, service_range::HostRanges};
use crate::{
    apply::{Applier, ApplyError},
    control_plane::{DNS_USER, TENANT_USER},
    controllers::tenant_class::SyncerRules,
};
use berth_api::names;
use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        core::v1::ServiceAccount,
        networking::v1::{ServiceCIDR, ServiceCIDRSpec},
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Group whose members are cluster-admin in their tenant. Not `system:masters`: its rights can be seen and taken away.
pub const ADMIN_GROUP: &str = "berth:tenant-admins";
/// Name of the tenant's roles and bindings that Berth makes.
const SYNCER_ROLE: &str = "berth:syncer";

/// Applies the bootstrap objects. `rules` is what the syncer may do, `webhooks` leads the tenant's Services to it.
///
/// # Errors
/// The tenant's API server refuses or does not answer.
pub async fn apply(
    tenant: &Applier,
    rules: &SyncerRules,
    host_ranges: &HostRanges,
    webhooks: &MutatingWebhookConfiguration,
) -> Result<(), ApplyError> {
    tenant.apply(&syncer_role(rules)).await?;
    tenant
        .apply(&binding(SYNCER_ROLE, SYNCER_ROLE, user(TENANT_USER)))
        .await?;
    tenant
        .apply(&binding(ADMIN_GROUP, "cluster-admin", group(ADMIN_GROUP)))
        .await?;
    tenant.apply(&default_service_account()).await?;
    tenant.apply(&dns::role()).await?;
    tenant.apply(&binding(DNS_USER, DNS_USER, user(DNS_USER))).await?;
    for cidr in service_cidrs(host_ranges) {
        tenant.apply(&cidr).await?;
    }
    // Last: from here on Services need the host's ranges.
    tenant.apply(webhooks).await
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    }
}

fn syncer_role(rules: &SyncerRules) -> ClusterRole {
    ClusterRole {
        metadata: named(SYNCER_ROLE),
        rules: Some(rules.tenant.clone()),
        aggregation_rule: None,
    }
}

fn binding(name: &str, role: &str, subject: Subject) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: named(name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: role.into(),
        },
        subjects: Some(vec![subject]),
    }
}

fn subject(kind: &str, name: &str) -> Subject {
    Subject {
        api_group: Some("rbac.authorization.k8s.io".into()),
        kind: kind.into(),
        name: name.into(),
        namespace: None,
    }
}

fn user(name: &str) -> Subject {
    subject("User", name)
}

fn group(name: &str) -> Subject {
    subject("Group", name)
}

/// The service account `default/default`, without which no pod is admitted. The controller manager would make it a
/// second or so later; a tenant that is called ready accepts pods.
fn default_service_account() -> ServiceAccount {
    ServiceAccount {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            ..named("default")
        },
        ..ServiceAccount::default()
    }
}

/// The host's Service ranges as further ranges of the tenant, so that a Service can have one address on both sides.
fn service_cidrs(host_ranges: &HostRanges) -> Vec<ServiceCIDR> {
    let cidr = |(index, cidrs): (usize, &Vec<String>)| {
        let name = if index == 0 {
            SERVICE_CIDR_NAME.to_owned()
        } else {
            let parts: Vec<&str> = cidrs.iter().map(String::as_str).collect();
            format!("{SERVICE_CIDR_NAME}-{}", names::hash(&parts))
        };
        ServiceCIDR {
            metadata: named(&name),
            spec: Some(ServiceCIDRSpec {
                cidrs: Some(cidrs.clone()),
            }),
            status: None,
        }
    };
    host_ranges.0.iter().enumerate().map(cidr).collect()
}
