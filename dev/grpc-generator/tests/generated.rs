//! The generated code in the repository is what the protocol buffers say.
//!
//! After a change of a `.proto` file: `BERTH_GENERATE=1 cargo test -p berth-grpc-generator`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use berth_grpc_generator::{Sides, check_generated};
use std::path::Path;

fn check(proto: &str, sides: Sides, generated: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    check_generated(&root.join(proto), sides, &root.join(generated)).unwrap();
}

#[test]
fn etcd_client_is_up_to_date() {
    check(
        "crates/etcd/proto/rpc.proto",
        Sides::Client,
        "crates/etcd/src/generated/etcdserverpb.rs",
    );
}

#[test]
fn device_plugin_api_is_up_to_date() {
    check(
        "dev/device-plugin/proto/api.proto",
        Sides::ClientAndServer,
        "dev/device-plugin/src/generated/v1beta1.rs",
    );
}
