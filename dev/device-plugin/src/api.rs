//! The kubelet's device plugin API.

/// Version `v1beta1`, the only one there is, as generated from its protocol buffers.
#[expect(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the documentation is in proto/api.proto"
)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}
