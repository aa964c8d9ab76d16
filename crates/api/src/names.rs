//! Names that Berth derives: host objects of tenants, and the identities of a tenant.
//!
//! A derived name is always `<readable prefix>-<hash>`. The hash covers length-prefixed parts, so no two
//! inputs share an encoding, and 65 bits of SHA-256 are kept: with a million objects in a tenant the chance of
//! any collision is below 2^-26 (birthday bound n²/2^(bits+1)).

use sha2::{Digest, Sha256};

/// Longest name derived here: the limit of a DNS label (RFC 1123), the narrowest of the kinds Berth creates.
pub const MAX_NAME: usize = 63;
/// Length of the hash suffix in base-32 characters of five bits each.
pub const HASH_LENGTH: usize = 13;

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Hash of a list of parts: [`HASH_LENGTH`] lower-case letters and digits. Each part is prefixed by its length,
/// so `["a", "bc"]` and `["ab", "c"]` differ.
pub fn hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let digest = digest.finalize();
    let mut bits = 0_u32;
    let mut held = 0;
    let mut out = String::with_capacity(HASH_LENGTH);
    for byte in digest {
        bits = (bits << 8) | u32::from(byte);
        held += 8;
        while held >= 5 && out.len() < HASH_LENGTH {
            held -= 5;
            out.push(char::from(BASE32[((bits >> held) & 31) as usize]));
        }
        if out.len() == HASH_LENGTH {
            break;
        }
        bits &= (1 << held) - 1;
    }
    out
}

/// The readable part of a derived name: lower-case letters, digits and inner dashes, starting with a letter,
/// at most `max` characters.
fn readable(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(max);
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        if out.len() >= max {
            break;
        }
        match c {
            '0'..='9' if out.is_empty() => {
                // A Service's name may not start with a digit (RFC 1035).
                out.push('x');
                if out.len() < max {
                    out.push(c);
                }
            }
            'a'..='z' | '0'..='9' => out.push(c),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    if out.is_empty() { "x".into() } else { out }
}

/// `<readable prefix>-<hash>`, at most `max` characters (at least [`HASH_LENGTH`] + 2).
fn named(prefix: &str, hash: &str, max: usize) -> String {
    format!("{}-{hash}", readable(prefix, max - hash.len() - 1))
}

/// Name of the host object for a tenant's object.
///
/// `kind` is the Kubernetes kind (`Pod`, `Secret`, …), `namespace` and `name` those of the tenant's object.
/// The result is a DNS label of at most [`MAX_NAME`] characters, unique for (kind, namespace, name).
pub fn host_name(kind: &str, namespace: &str, name: &str) -> String {
    named(name, &hash(&[kind, namespace, name]), MAX_NAME)
}

/// The identity from which everything of one tenant is named. Derived from the `TenantCluster`'s UID, so that a
/// tenant recreated under the same name never uses anything of its predecessor, and no text of a tenant becomes a
/// user name, a common name, an etcd prefix or a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId {
    hash: String,
    slug: String,
}

impl TenantId {
    /// The identity of the `TenantCluster` called `name` with the given `uid`.
    pub fn new(name: &str, uid: &str) -> Self {
        let hash = hash(&["TenantCluster", uid]);
        let slug = named(name, &hash, 42);
        Self { hash, slug }
    }

    /// The bare hash: for users, certificates, key prefixes and paths.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// `<readable name>-<hash>`: for labels, taints and other things that people read.
    pub fn slug(&self) -> &str {
        &self.slug
    }

    /// Name of the `ClusterRole` and its binding by which the syncer reads the host's classes.
    pub fn cluster_role(&self) -> String {
        format!("berth-syncer-{}", self.slug)
    }

    /// Name of the Secret in Argo CD's namespace with the tenant's address and credentials.
    pub fn argo_cd_secret(&self) -> String {
        format!("berth-{}", self.slug)
    }

    /// Host namespace that holds the tenant's control plane, PKI and syncer.
    pub fn control_plane_namespace(&self) -> String {
        format!("{WORKLOADS_PREFIX}{}{CONTROL_PLANE_SUFFIX}", self.slug)
    }

    /// Host namespace that holds everything the syncer creates.
    pub fn workload_namespace(&self) -> String {
        format!("{WORKLOADS_PREFIX}{}", self.slug)
    }

    /// User of the shared etcd; also the common name of its client certificate and the name of its role.
    pub fn etcd_user(&self) -> String {
        format!("{ETCD_USER_PREFIX}{}", self.hash)
    }

    /// Key prefix of the tenant in the shared etcd, without the final slash.
    pub fn etcd_prefix(&self) -> String {
        etcd_prefix(&self.hash)
    }
}

/// Before the hash in the name of a tenant's user of the shared etcd.
const ETCD_USER_PREFIX: &str = "berth-";

fn etcd_prefix(hash: &str) -> String {
    format!("/berth/{hash}")
}

/// Key prefix of the tenant with this user of the shared etcd; none if no tenant has such a user.
pub fn etcd_prefix_of_user(user: &str) -> Option<String> {
    let hash = user.strip_prefix(ETCD_USER_PREFIX)?;
    is_hash(hash).then(|| etcd_prefix(hash))
}

/// Whether a text has the form of a [`hash`].
fn is_hash(text: &str) -> bool {
    text.len() == HASH_LENGTH && text.bytes().all(|byte| BASE32.contains(&byte))
}

/// Before the slug in the name of a workload namespace.
const WORKLOADS_PREFIX: &str = "berth-";
/// Regular expression (RE2) for what [`is_like_tenant_namespace`] takes for a workload namespace.
pub const WORKLOAD_NAMESPACE_PATTERN: &str = "^berth-.+-[a-z2-7]{13}$";
/// Regular expression (RE2) for names of which [`is_like_tenant_namespace`] is true.
pub const TENANT_NAMESPACE_PATTERN: &str = "^berth-.+-[a-z2-7]{13}(-cp)?$";
/// After the name of the workload namespace in that of the control-plane namespace.
const CONTROL_PLANE_SUFFIX: &str = "-cp";

/// Whether a namespace of the host is the workload namespace of the tenant with this slug. Labels say which tenant an object belongs to, and
/// everybody who may create objects of the kind can write them. Only what is in that namespace is the tenant's.
pub fn is_workload_namespace(namespace: &str, slug: &str) -> bool {
    !slug.is_empty() && namespace.strip_prefix(WORKLOADS_PREFIX) == Some(slug)
}

/// Whether a namespace of the host is the control-plane namespace of the tenant with this slug.
pub fn is_control_plane_namespace(namespace: &str, slug: &str) -> bool {
    let of_workloads = namespace.strip_suffix(CONTROL_PLANE_SUFFIX);
    of_workloads.is_some_and(|namespace| is_workload_namespace(namespace, slug))
}

/// Whether a name has the form of the workload or control-plane namespace of a tenant, whether or not there is such a tenant.
pub fn is_like_tenant_namespace(name: &str) -> bool {
    let of_workloads = name.strip_suffix(CONTROL_PLANE_SUFFIX).unwrap_or(name);
    let parts = of_workloads
        .strip_prefix(WORKLOADS_PREFIX)
        .and_then(|slug| slug.rsplit_once('-'));
    parts.is_some_and(|(readable, hash)| !readable.is_empty() && is_hash(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn is_dns_label(name: &str) -> bool {
        name.len() <= MAX_NAME
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    }

    #[test]
    fn users_of_the_datastore_lead_to_the_keys_of_their_tenant_and_others_to_none() {
        let id = TenantId::new("vision", "6f2c");
        assert_eq!(etcd_prefix_of_user(&id.etcd_user()), Some(id.etcd_prefix()));
        for other in [
            "root",
            "berth-",
            "berth-vision",
            "berth-0123456789abc",
            id.hash(),
            id.slug(),
        ] {
            assert_eq!(etcd_prefix_of_user(other), None, "{other}");
        }
    }

    #[test]
    fn namespaces_of_tenants_are_recognized() {
        let long = "a".repeat(253);
        for name in ["vision", "a", long.as_str(), "berth-9"] {
            let id = TenantId::new(name, "6f2c");
            for namespace in [id.workload_namespace(), id.control_plane_namespace()] {
                assert!(is_like_tenant_namespace(&namespace), "{namespace}");
            }
        }
        for other in [
            "berth-system",
            "berth-aaaaaaaaaaaaa",
            "berth--aaaaaaaaaaaaa",
            "berth-vision",
            "berth-vision-aaaaaaaaaaaa",
            "berth-vision-0123456789abc",
            "berth-vision-aaaaaaaaaaaaa-x",
            "vision-aaaaaaaaaaaaa",
            "kube-system",
        ] {
            assert!(!is_like_tenant_namespace(other), "{other}");
        }
    }

    #[test]
    fn the_patterns_of_namespaces_have_their_parts() {
        let pattern = format!("^{WORKLOADS_PREFIX}.+-[a-z2-7]{{{HASH_LENGTH}}}");
        assert_eq!(WORKLOAD_NAMESPACE_PATTERN, format!("{pattern}$"));
        assert_eq!(TENANT_NAMESPACE_PATTERN, format!("{pattern}({CONTROL_PLANE_SUFFIX})?$"));
        assert!(BASE32.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')));
    }

    #[test]
    fn names_are_readable_and_stable() {
        assert_eq!(host_name("Pod", "default", "train-0"), "train-0-z4mxl3nreldub");
        assert_eq!(hash(&["Pod", "default", "train-0"]).len(), HASH_LENGTH);
    }

    #[test]
    fn concatenation_does_not_collide() {
        assert_ne!(host_name("Pod", "a", "b-x-c"), host_name("Pod", "a-x-b", "c"));
        assert_ne!(hash(&["a", "bc"]), hash(&["ab", "c"]));
        assert_ne!(host_name("Pod", "a", "n"), host_name("Secret", "a", "n"));
    }

    #[test]
    fn a_million_names_do_not_collide() {
        let mut seen = HashSet::new();
        for namespace in 0..1000 {
            for name in 0..1000 {
                assert!(seen.insert(hash(&["Pod", &namespace.to_string(), &name.to_string()])));
            }
        }
    }

    #[test]
    fn tenant_names_fit_and_follow_the_uid() {
        let long = TenantId::new(&"a".repeat(253), "00000000-0000-0000-0000-000000000001");
        for name in [
            long.control_plane_namespace(),
            long.workload_namespace(),
            long.etcd_user(),
        ] {
            assert!(is_dns_label(&name), "{name}");
        }
        assert_ne!(TenantId::new("a", "1").hash(), TenantId::new("a", "2").hash());
        assert!(is_workload_namespace(&long.workload_namespace(), long.slug()));
        assert!(!is_workload_namespace(&long.control_plane_namespace(), long.slug()));
        assert!(!is_workload_namespace("team", long.slug()) && !is_workload_namespace("berth-", ""));
        assert_eq!(TenantId::new("a", "1").hash(), TenantId::new("b", "1").hash());
    }

    proptest! {
        #[test]
        fn any_input_gives_a_dns_label(kind in ".{0,20}", namespace in ".{0,80}", name in ".{0,300}") {
            prop_assert!(is_dns_label(&host_name(&kind, &namespace, &name)));
        }

        #[test]
        fn different_inputs_differ(a in ("[a-c-]{1,4}", "[a-c-]{1,4}"), b in ("[a-c-]{1,4}", "[a-c-]{1,4}")) {
            prop_assume!(a != b);
            prop_assert_ne!(host_name("Pod", &a.0, &a.1), host_name("Pod", &b.0, &b.1));
        }
    }
}
