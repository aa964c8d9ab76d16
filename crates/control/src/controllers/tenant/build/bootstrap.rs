//! Objects that Berth puts into every tenant before it is called ready.

use super::{
    super::fetch::HostRanges,
    access_bindings::{access_bindings, issuer_discovery_binding},
    dns::dns_role,
    team_roles::team_roles,
};
use crate::{
    control_plane::{DNS_USER, TENANT_USER},
    controllers::tenant_class::SyncerRules,
};
use berth_api::{TenantAccess, labels, names};
use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        networking::v1::{ServiceCIDR, ServiceCIDRSpec},
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Group whose members are cluster-admin in their tenant. Not `system:masters`: RBAC can show and revoke its rights.
pub const ADMIN_GROUP: &str = "berth:tenant-admins";
/// Name of the ServiceCIDR in the tenant with the host's Service ranges.
const SERVICE_CIDR_NAME: &str = "berth-host";
/// Name of the syncer's role and binding in the tenant.
const SYNCER_ROLE: &str = "berth:syncer";

/// What is applied before the webhooks, in this order.
pub struct BootstrapObjects {
    /// What the syncer may do, what the tenant's DNS may read, and the roles for teams.
    pub roles: Vec<ClusterRole>,
    /// Bindings of these roles, and of the tenant's administrators.
    pub bindings: Vec<ClusterRoleBinding>,
    /// The account without which no pod is admitted.
    pub service_account: ServiceAccount,
    /// The host's Service ranges.
    pub service_cidrs: Vec<ServiceCIDR>,
}

/// The bootstrap objects. `rules` is what the syncer may do, `access` who has a role in the whole tenant, and `is_discovery_public` whether
/// everybody may read the public keys of its ServiceAccounts.
pub fn bootstrap_objects(
    rules: &SyncerRules,
    host_ranges: &HostRanges,
    access: &TenantAccess,
    is_discovery_public: bool,
) -> BootstrapObjects {
    BootstrapObjects {
        roles: [syncer_role(rules), dns_role()]
            .into_iter()
            .chain(team_roles())
            .collect(),
        bindings: [
            ClusterRoleBinding {
                metadata: kept(SYNCER_ROLE),
                ..binding(SYNCER_ROLE, SYNCER_ROLE, user(TENANT_USER))
            },
            binding(ADMIN_GROUP, "cluster-admin", group(ADMIN_GROUP)),
            binding(DNS_USER, DNS_USER, user(DNS_USER)),
        ]
        .into_iter()
        .chain(access_bindings(access))
        .chain([issuer_discovery_binding(is_discovery_public)])
        .collect(),
        service_account: default_service_account(),
        service_cidrs: service_cidrs(host_ranges),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    }
}

/// The same with the label by which nobody in the tenant may change or delete the object: without its rights, a syncer takes nothing away on
/// the host that the class no longer allows.
pub(super) fn kept(name: &str) -> ObjectMeta {
    ObjectMeta {
        labels: Some([(labels::MANAGED_BY.into(), labels::MANAGED_BY_PLATFORM.into())].into()),
        ..named(name)
    }
}

fn syncer_role(rules: &SyncerRules) -> ClusterRole {
    ClusterRole {
        metadata: kept(SYNCER_ROLE),
        rules: Some(rules.tenant.clone()),
        aggregation_rule: None,
    }
}

/// A binding of a ClusterRole to one subject.
pub(super) fn binding(name: &str, role: &str, subject: Subject) -> ClusterRoleBinding {
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

/// A user as a subject.
pub(super) fn user(name: &str) -> Subject {
    subject("User", name)
}

fn group(name: &str) -> Subject {
    subject("Group", name)
}

/// The service account `default/default`, without which no pod is admitted. The controller manager would create it about a
/// second later; a tenant that is called ready accepts pods.
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
