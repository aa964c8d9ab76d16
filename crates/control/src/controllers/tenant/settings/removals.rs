//! What a spec takes away from people and from Argo CD although it is not accepted: pure.
//!
//! While a spec cannot be carried out, or waits for quota, a tenant runs with what it was accepted with last. Of people it keeps only
//! those whom the spec still lists, and a registration in Argo CD only if the spec still asks for it: an owner who removes somebody does not wait for a
//! node, a version or a quota. The result is recorded, so that a spec that lists them again gives them nothing before it is accepted.

use super::{Settings, requested_argo_cd};
use crate::authentication;
use berth_api::{AccessSubject, TenantAccess, TenantClassSpec, TenantCluster};

/// What a tenant was accepted with, without the people, the issuers and the registration in Argo CD that its spec no longer lists. `rules` are those of
/// the class with which it runs.
pub(in super::super) fn without_removed(
    accepted: Settings,
    cluster: &TenantCluster,
    rules: Option<&TenantClassSpec>,
) -> Settings {
    let own = cluster.spec.authentication.as_ref();
    let keeps_argo_cd = accepted.argo_cd_from_class || requested_argo_cd(cluster).is_some();
    Settings {
        argo_cd: accepted.argo_cd.filter(|_| keeps_argo_cd),
        authentication: authentication::narrow_to_spec(accepted.authentication, own, rules),
        access: keep_access(&accepted.access, &cluster.spec.access),
        ..accepted
    }
}

/// The roles that are in both. Who has a greater role in `accepted` may have a smaller one: admins may do what editors may, and these what viewers may.
fn keep_access(accepted: &TenantAccess, listed: &TenantAccess) -> TenantAccess {
    let TenantAccess {
        admins,
        editors,
        viewers,
    } = accepted;
    let keep = |listed: &[AccessSubject], had: &[&[AccessSubject]]| -> Vec<AccessSubject> {
        let is_kept = |subject: &&AccessSubject| had.iter().any(|subjects| subjects.contains(subject));
        listed.iter().filter(is_kept).cloned().collect()
    };
    TenantAccess {
        admins: keep(&listed.admins, &[admins]),
        editors: keep(&listed.editors, &[admins, editors]),
        viewers: keep(&listed.viewers, &[admins, editors, viewers]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn access(value: &Value) -> TenantAccess {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn user(name: &str) -> Value {
        json!({"kind": "User", "name": name})
    }

    #[test]
    fn a_removed_admin_loses_the_role_and_an_added_one_waits() {
        let accepted = access(&json!({"admins": [user("ada"), user("eve")], "viewers": [user("bob")]}));
        let listed = access(&json!({
            "admins": [user("ada"), user("bob")], "viewers": [user("bob"), {"kind": "Group", "name": "eve"}],
        }));
        let kept = keep_access(&accepted, &listed);
        assert_eq!(
            kept,
            access(&json!({"admins": [user("ada")], "viewers": [user("bob")]}))
        );
        // It is recorded, so a spec that is as before does not bring them back.
        assert_eq!(keep_access(&kept, &accepted).admins, kept.admins);
    }

    #[test]
    fn a_smaller_role_holds_at_once() {
        let accepted = access(&json!({"admins": [user("ada")], "editors": [user("bob")]}));
        let listed = access(&json!({"editors": [user("ada")], "viewers": [user("ada"), user("bob")]}));
        assert_eq!(keep_access(&accepted, &listed), listed);
    }
}
