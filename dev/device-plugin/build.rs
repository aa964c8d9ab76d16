//! Generates the kubelet's device plugin API from its protocol buffers.

fn main() -> std::io::Result<()> {
    // The kubelet's side too: tests play it.
    tonic_prost_build::configure().compile_protos(&["proto/api.proto"], &["proto"])
}
