//! The command line.

use std::path::PathBuf;

use berth_runtime::telemetry::LogFormat;
use clap::Parser;

/// Stands in for NVIDIA's device plugin on a node without GPUs.
#[derive(Clone, Debug, Parser)]
#[command(name = "berth-device-plugin", version)]
pub struct Options {
    /// The extended resource that the node gets.
    #[arg(long, default_value = "nvidia.com/gpu")]
    pub resource: String,
    /// Number of devices.
    #[arg(long, default_value_t = 8)]
    pub count: u16,
    /// The name of the node. Device ids are derived from it, so that no two nodes have the same.
    #[arg(long)]
    pub node: String,
    /// Where the kubelet looks for device plugins.
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    pub directory: PathBuf,
    /// A file with the ids of devices that have failed, one per line. It is polled; without it, all devices are
    /// healthy.
    #[arg(long)]
    pub unhealthy: Option<PathBuf>,
    /// Format of log lines: text or json.
    #[arg(long, default_value = "text")]
    pub log_format: LogFormat,
}

impl Options {
    /// The file name of the plugin's own socket.
    pub(crate) fn socket_name(&self) -> String {
        format!("{}.sock", self.resource.replace(['/', '.'], "-"))
    }
}
