//! Roles in the whole tenant that the spec gives to users and groups.
//!
//! The bindings are the platform's: nobody in the tenant changes or deletes them, so the spec is all that must be read to know who has
//! them. They exist in every tenant, without subjects where the spec names none: what a spec no longer gives is gone with the
//! next reconcile, whatever was applied before.

use super::team_roles::{EDITOR, VIEWER};
use berth_api::{AccessSubject, SubjectKind, TenantAccess, labels};
use k8s_openapi::{
    api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// API group of RBAC.
const GROUP: &str = "rbac.authorization.k8s.io";

/// The bindings.
pub fn access_bindings(access: &TenantAccess) -> [ClusterRoleBinding; 3] {
    let TenantAccess {
        admins,
        editors,
        viewers,
    } = access;
    [
        binding("berth:access:admins", "cluster-admin", admins),
        binding("berth:access:editors", EDITOR, editors),
        binding("berth:access:viewers", VIEWER, viewers),
    ]
}

/// The binding that lets everybody read the discovery document and the public keys of the tenant's ServiceAccounts, without credentials. Like the
/// others it always exists, and has no subject if they are not public.
pub fn issuer_discovery_binding(is_public: bool) -> ClusterRoleBinding {
    let everybody = Subject {
        api_group: Some(GROUP.into()),
        kind: SubjectKind::Group.as_str().into(),
        name: "system:unauthenticated".into(),
        namespace: None,
    };
    ClusterRoleBinding {
        subjects: Some(is_public.then_some(everybody).into_iter().collect()),
        ..binding(
            "berth:service-account-issuer-discovery",
            "system:service-account-issuer-discovery",
            &[],
        )
    }
}

fn binding(name: &str, role: &str, subjects: &[AccessSubject]) -> ClusterRoleBinding {
    let subject = |AccessSubject { kind, name }: &AccessSubject| Subject {
        api_group: Some(GROUP.into()),
        kind: kind.as_str().into(),
        name: name.clone(),
        namespace: None,
    };
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some([(labels::MANAGED_BY.into(), labels::MANAGED_BY_PLATFORM.into())].into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: Some(GROUP.into()),
            kind: "ClusterRole".into(),
            name: role.into(),
        },
        // An empty list, not none: what others added in an earlier version of Kubernetes goes, too.
        subjects: Some(subjects.iter().map(subject).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_public_only_if_the_tenant_says_so() {
        let [public, private] = [true, false].map(issuer_discovery_binding);
        let names = |binding: &ClusterRoleBinding| -> Vec<String> {
            binding.subjects.iter().flatten().map(|one| one.name.clone()).collect()
        };
        assert_eq!(names(&public), ["system:unauthenticated"]);
        assert_eq!(private.subjects, Some(Vec::new()));
        assert_eq!(private.role_ref.name, "system:service-account-issuer-discovery");
    }

    #[test]
    fn each_list_has_its_role_and_all_are_the_platforms() {
        let access = serde_json::from_value(json!({
            "admins": [{"kind": "Group", "name": "oidc:vision-admins"}, {"kind": "User", "name": "oidc:ada"}],
            "viewers": [{"kind": "Group", "name": "oidc:staff"}],
        }))
        .unwrap();
        let bindings = access_bindings(&access).map(|binding| {
            assert_eq!(
                binding.metadata.labels.unwrap()[labels::MANAGED_BY],
                labels::MANAGED_BY_PLATFORM
            );
            let subjects = binding.subjects.unwrap();
            let subjects: Vec<String> = subjects
                .iter()
                .map(|one| format!("{} {}", one.kind, one.name))
                .collect();
            (binding.role_ref.name, subjects.join(", "))
        });
        let expected = [
            ("cluster-admin", "Group oidc:vision-admins, User oidc:ada"),
            ("berth:editor", ""),
            ("berth:viewer", "Group oidc:staff"),
        ];
        assert_eq!(
            bindings,
            expected.map(|(role, subjects)| (role.to_owned(), subjects.to_owned()))
        );
    }
}
