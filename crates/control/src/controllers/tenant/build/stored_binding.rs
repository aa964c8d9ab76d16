//! ClusterRoleBindings as an API server stores them, as far as they say who has which role: pure.
//!
//! The numbers of the fields are those of `k8s.io/api/rbac/v1/generated.proto`, which never change.

use super::stored_object::decode;
use k8s_openapi::api::rbac::v1 as rbac;
use prost::Message;

/// `rbac.v1.ClusterRoleBinding`.
#[derive(Clone, PartialEq, Message)]
struct Binding {
    #[prost(message, repeated, tag = "2")]
    subjects: Vec<Subject>,
    #[prost(message, optional, tag = "3")]
    role: Option<RoleRef>,
}

/// `rbac.v1.Subject`.
#[derive(Clone, PartialEq, Message)]
struct Subject {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    namespace: String,
}

/// `rbac.v1.RoleRef`.
#[derive(Clone, PartialEq, Message)]
struct RoleRef {
    #[prost(string, tag = "2")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
}

/// Where the binding of this name is stored, below the prefix of the tenant's keys.
pub fn path(name: &str) -> String {
    format!("clusterrolebindings/{name}")
}

/// Whether a stored binding gives somebody a role that the `wanted` one does not give. One that cannot be read may give anything.
pub fn gives_more(stored: &[u8], wanted: &rbac::ClusterRoleBinding) -> bool {
    let Some(Binding { subjects, role }) = decode::<Binding>(stored) else {
        return true;
    };
    let is_wanted = |subject: &Subject| {
        wanted.subjects.iter().flatten().any(|other| {
            (subject.kind.as_str(), subject.name.as_str()) == (other.kind.as_str(), other.name.as_str())
                && subject.namespace == other.namespace.as_deref().unwrap_or_default()
        })
    };
    let role = role.unwrap_or_default();
    let has_role =
        (role.kind.as_str(), role.name.as_str()) == (wanted.role_ref.kind.as_str(), wanted.role_ref.name.as_str());
    // Without subjects it gives nothing, whatever its role.
    !(subjects.is_empty() || has_role && subjects.iter().all(is_wanted))
}

/// Bytes as an API server stores a binding of a ClusterRole to users.
#[cfg(test)]
pub fn encode(name: &str, role: &str, users: &[&str]) -> Vec<u8> {
    const GROUP: &[u8] = b"rbac.authorization.k8s.io";
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![(number << 3) | 2];
        let mut length = bytes.len();
        while length > 127 {
            field.push(u8::try_from(length & 127).unwrap() | 128);
            length >>= 7;
        }
        field.push(u8::try_from(length).unwrap());
        field.extend(bytes);
        field
    }
    let subject = |user: &&str| {
        let subject = [
            field(1, b"User"),
            field(2, GROUP),
            field(3, user.as_bytes()),
            field(4, b""),
        ];
        field(2, &subject.concat())
    };
    let kind = [
        field(1, b"rbac.authorization.k8s.io/v1"),
        field(2, b"ClusterRoleBinding"),
    ];
    let role = [field(1, GROUP), field(2, b"ClusterRole"), field(3, role.as_bytes())];
    let mut binding = field(1, &field(1, name.as_bytes()));
    binding.extend(users.iter().flat_map(subject));
    binding.extend(field(3, &role.concat()));
    let envelope = [
        field(1, &kind.concat()),
        field(2, &binding),
        field(3, b""),
        field(4, b""),
    ];
    [super::stored_object::MAGIC, &envelope.concat()].concat()
}

#[cfg(test)]
mod tests {
    use super::{super::access_bindings::access_bindings, *};
    use serde_json::json;

    const NAME: &str = "berth:access:admins";

    fn wanted(admins: &[&str]) -> rbac::ClusterRoleBinding {
        let users: Vec<_> = admins
            .iter()
            .map(|name| json!({"kind": "User", "name": name}))
            .collect();
        let access = serde_json::from_value(json!({ "admins": users })).unwrap();
        let [admins, _, _] = access_bindings(&access);
        assert_eq!(admins.metadata.name.as_deref(), Some(NAME));
        admins
    }

    #[test]
    fn a_binding_with_a_subject_that_is_not_wanted_gives_more() {
        let names = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
        let stored = |users: &'static str| encode(NAME, "cluster-admin", &names(users));
        for (users, admins, expected) in [
            ("ada eve", "ada eve", false),
            ("ada eve", "eve ada bob", false),
            ("ada eve", "ada", true),
            ("ada eve", "", true),
            ("eve", "ada", true),
            ("", "", false),
        ] {
            let found = gives_more(&stored(users), &wanted(&names(admins)));
            assert_eq!(found, expected, "{users:?} {admins:?}");
        }
        // A group and a ServiceAccount of the same name are other subjects.
        for kind in ["Group", "ServiceAccount"] {
            let mut other = wanted(&["ada"]);
            other.subjects.as_mut().unwrap()[0].kind = kind.into();
            assert!(gives_more(&stored("ada"), &other), "{kind}");
        }
    }

    #[test]
    fn a_binding_of_another_role_gives_more_unless_it_has_no_subjects() {
        let stored = |users: &[&str]| encode(NAME, "other", users);
        assert!(gives_more(&stored(&["ada"]), &wanted(&["ada"])));
        assert!(!gives_more(&stored(&[]), &wanted(&["ada"])));
    }

    #[test]
    fn a_value_that_cannot_be_read_may_give_anything() {
        let stored = encode(NAME, "cluster-admin", &["ada"]);
        for value in [&b""[..], b"{}", &stored[4..], &stored[..stored.len() - 9], b"k8s\0\xff"] {
            assert!(gives_more(value, &wanted(&["ada"])), "{value:?}");
        }
    }

    #[test]
    fn a_binding_is_where_api_servers_store_it() {
        assert_eq!(path(NAME), "clusterrolebindings/berth:access:admins");
    }
}
