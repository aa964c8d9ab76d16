//! Which database a tenant has: the UID of its namespace `kube-system`, which its first API server made and which nobody can delete: pure.
//!
//! The numbers of the fields are those of `k8s.io/api/core/v1/generated.proto` and `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`,
//! which never change.

use super::stored_object::decode;
use prost::Message;

/// Where the namespace is stored, below the prefix of the tenant's keys. Without this key nothing is a tenant's database.
pub const PATH: &str = "namespaces/kube-system";

/// `core.v1.Namespace`.
#[derive(Clone, PartialEq, Message)]
struct Namespace {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

/// `meta.v1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "5")]
    uid: String,
}

/// The UID of a stored namespace; none if it cannot be read.
pub fn uid(stored: &[u8]) -> Option<String> {
    let metadata = decode::<Namespace>(stored)?.metadata?;
    Some(metadata.uid).filter(|uid| !uid.is_empty())
}

/// Bytes as an API server stores the namespace.
#[cfg(test)]
pub fn encode(uid: &str) -> Vec<u8> {
    let metadata = ObjectMeta {
        name: "kube-system".into(),
        uid: uid.into(),
    };
    super::stored_object::encode(&Namespace {
        metadata: Some(metadata),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_of_what_an_api_server_stores_is_read() {
        // The first bytes of a namespace in etcd, with the fields in between.
        let stored = b"k8s\0\n\x0f\n\x02v1\x12\tNamespace\x12\x1f\n\x1d\n\x0bkube-system\x12\0\x1a\0\x22\0*\x04a-b2\x32\0\x38\0\x1a\0\x22\0";
        assert_eq!(uid(stored).as_deref(), Some("a-b2"));
        assert_eq!(uid(&encode("a-b2")).as_deref(), Some("a-b2"));
    }

    #[test]
    fn what_cannot_be_read_has_no_uid() {
        for stored in [&b""[..], b"{}", b"k8s\0\xff", &encode("")[..]] {
            assert_eq!(uid(stored), None, "{stored:?}");
        }
    }
}
