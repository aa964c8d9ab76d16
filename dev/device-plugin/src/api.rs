//! The kubelet's device plugin API.

/// Version `v1beta1`, the only one there is. Generated: see `dev/grpc-generator`.
#[expect(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the documentation is in proto/api.proto"
)]
pub mod v1beta1 {
    // Both sides: tests act as the kubelet.
    include!("generated/v1beta1.rs");
}
