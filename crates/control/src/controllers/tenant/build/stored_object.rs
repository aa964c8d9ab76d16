//! Objects as an API server stores them: pure.
//!
//! An object of a built-in kind is stored as a protocol buffer, in an envelope behind four bytes. The numbers of the fields are those of
//! `k8s.io/apimachinery/pkg/runtime/generated.proto`, which never change.

use prost::Message;

/// What a stored protocol buffer begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// The object in a stored value; none if it cannot be read.
pub(super) fn decode<T: Message + Default>(value: &[u8]) -> Option<T> {
    let envelope = Envelope::decode(value.strip_prefix(MAGIC)?).ok()?;
    T::decode(envelope.raw.as_slice()).ok()
}

/// An object as it is stored, without its kind.
#[cfg(test)]
pub(super) fn encode(object: &impl Message) -> Vec<u8> {
    let raw = object.encode_to_vec();
    [MAGIC, &Envelope { raw }.encode_to_vec()].concat()
}
