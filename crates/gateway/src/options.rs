//! Command line of `berth-gateway`.

use crate::{
    hold::HoldLimits,
    routes::Backends,
    server::{Limits, Timeouts},
};
use berth_api::GatewayDomain;
use berth_runtime::telemetry::LogFormat;
use clap::{Parser, ValueEnum};
use ipnet::IpNet;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// One address for the API servers of all tenants: reads the server name that a TLS client asks for and passes the connection to the
/// API server of that tenant. TLS is never ended here.
#[derive(Clone, Debug, Parser)]
// The chart passes flags, and `gateway.extraArgs` follow: the last one counts.
#[command(name = "berth-gateway", version, about, args_override_self = true)]
pub struct Options {
    /// Kubeconfig of the host cluster. Without one, this is a pod of the host cluster with a service account.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Domain of the host names: the API server of a tenant is `<tenant>.<namespace>.<domain>`. The same as --gateway-domain of
    /// berth-control.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: GatewayDomain,
    /// Where the control planes of tenants run, as --runtime of berth-control says.
    #[arg(long, value_enum, default_value_t = RuntimeKind::Cluster)]
    pub runtime: RuntimeKind,
    /// Address at which TLS connections are accepted.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub listen_address: SocketAddr,
    /// Maximum number of connections. Further ones wait in the backlog of the kernel.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = parse_count)]
    pub max_connections: usize,
    /// Maximum number of connections that have not sent their ClientHello yet. For further ones the oldest are refused [default: a
    /// quarter of --max-connections].
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub max_handshakes: Option<usize>,
    /// Maximum number of connections to the API server of one tenant. Further ones are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 4_000, value_parser = parse_count)]
    pub max_connections_per_tenant: usize,
    /// Maximum number of connections from one source (as in --max-connections-per-source) to the API server of one tenant, so that
    /// none has all of the tenant's. Further ones are refused [default: a quarter of --max-connections-per-tenant].
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub max_connections_per_tenant_and_source: Option<usize>,
    /// Maximum number of connections from one IPv4 address or one IPv6 network of /64. Further ones are refused. Here and in all
    /// other limits of sources, one IPv6 network of /48 has at most twice the number. Where the network replaces the addresses of
    /// clients, many clients share one.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = parse_count)]
    pub max_connections_per_source: usize,
    /// Seconds within which a client must have sent its ClientHello.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub handshake_timeout: u32,
    /// Seconds within which an API server must accept a connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub connect_timeout: u32,
    /// Seconds that a connection waits for an API server that has no address yet, because its tenant is being created.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=300))]
    pub backend_timeout: u32,
    /// Seconds that a connection is held while its tenant wakes.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub wake_timeout: u32,
    /// Maximum number of connections that are held at the same time for tenants that wake. Further ones are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 4_000, value_parser = parse_count)]
    pub max_held_connections: usize,
    /// Maximum number of connections that are held for one tenant. Further ones are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 500, value_parser = parse_count)]
    pub max_held_connections_per_tenant: usize,
    /// Maximum number of connections from one source that are held for one tenant, so that none has all of the tenant's. Further ones are
    /// refused [default: a quarter of --max-held-connections-per-tenant].
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub max_held_connections_per_tenant_and_source: Option<usize>,
    /// Maximum number of connections that are held from one IPv4 address or one IPv6 network of /64. Further ones are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = parse_count)]
    pub max_held_connections_per_source: usize,
    /// Maximum number of connections whose client or API server takes nothing of what was sent to it. For further ones, those are
    /// closed at once that have taken nothing for longest. Each needs up to 784 KiB of memory.
    #[arg(long, value_name = "COUNT", default_value_t = 500, value_parser = parse_count)]
    pub max_stalled_connections: usize,
    /// Seconds after which a connection is closed whose client or API server takes nothing of what was sent to it. A connection on
    /// which nothing is sent, such as an idle watch, stays open.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub stall_timeout: u32,
    /// Seconds after SIGTERM in which connections are still accepted, and /readyz says so: until load balancers lead elsewhere.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=300))]
    pub shutdown_delay: u32,
    /// Seconds after that in which open connections go on. Then they are closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub drain_timeout: u32,
    /// Network of load balancers that begin every connection with a header of the PROXY protocol, version 2; may be given several
    /// times. Connections from elsewhere have none.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = berth_api::ranges::parse)]
    pub proxy_protocol_from: Vec<IpNet>,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub admin_address: SocketAddr,
    /// Format of log lines: text or json.
    #[arg(long, default_value = "text")]
    pub log_format: LogFormat,
}

/// Where control planes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuntimeKind {
    /// As processes of this machine.
    Process,
    /// As pods of the host cluster.
    Cluster,
}

impl From<RuntimeKind> for Backends {
    fn from(kind: RuntimeKind) -> Self {
        match kind {
            RuntimeKind::Process => Self::Loopback,
            RuntimeKind::Cluster => Self::ClusterIp,
        }
    }
}

impl Options {
    /// Limits of connections.
    pub fn limits(&self) -> Limits {
        Limits {
            connections: self.max_connections,
            handshakes: self.max_handshakes.unwrap_or_else(|| quarter(self.max_connections)),
            of_tenant: self.max_connections_per_tenant,
            of_tenant_source: self
                .max_connections_per_tenant_and_source
                .unwrap_or_else(|| quarter(self.max_connections_per_tenant)),
            of_source: self.max_connections_per_source,
            stalled: self.max_stalled_connections,
            held: HoldLimits {
                all: self.max_held_connections,
                of_tenant: self.max_held_connections_per_tenant,
                of_tenant_source: self
                    .max_held_connections_per_tenant_and_source
                    .unwrap_or_else(|| quarter(self.max_held_connections_per_tenant)),
                of_source: self.max_held_connections_per_source,
            },
        }
    }

    /// Limits of time.
    pub fn timeouts(&self) -> Timeouts {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Timeouts {
            handshake: seconds(self.handshake_timeout),
            connect: seconds(self.connect_timeout),
            backend: seconds(self.backend_timeout),
            wake: seconds(self.wake_timeout),
            stall: seconds(self.stall_timeout),
            drain: seconds(self.drain_timeout),
        }
    }
}

/// A part of a limit that leaves room for others.
fn quarter(limit: usize) -> usize {
    limit.div_ceil(4)
}

/// A number of connections. The upper limit is that of Linux for the files of one process (`fs.nr_open`), of which each connection
/// needs two.
fn parse_count(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 19;
    match text.parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("use a number from 1 to {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay;
    use berth_runtime::sockets;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn limits_and_networks_are_checked() {
        let parse = |flag: &str| Options::try_parse_from(["berth-gateway", "--domain=example.com", flag]);
        let options = parse("--proxy-protocol-from=10.0.0.0/8,fd00::/64").unwrap();
        assert_eq!(options.proxy_protocol_from.len(), 2);
        assert_eq!(options.timeouts().handshake, Duration::from_secs(5));
        assert_eq!(options.timeouts().wake, Duration::from_secs(60));
        for bad in [
            "--max-connections=0",
            "--max-connections-per-source=many",
            "--handshake-timeout=0",
            "--wake-timeout=0",
            "--stall-timeout=0",
            "--max-handshakes=0",
            "--max-stalled-connections=0",
            "--max-connections-per-tenant-and-source=0",
            "--max-held-connections=0",
            "--max-held-connections-per-tenant-and-source=0",
            "--proxy-protocol-from=10.0.0.1",
            "--domain=10.0.0.1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(Options::try_parse_from(["berth-gateway"]).is_err(), "without a domain");
    }

    #[test]
    fn readers_that_take_nothing_do_not_use_up_the_memory_that_the_chart_gives() {
        let values = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/berth/values.yaml");
        let values = std::fs::read_to_string(values).unwrap();
        let gateway = values.split_once("\ngateway:\n").unwrap().1;
        let (_, memory) = gateway.split_once("limits: {memory: ").unwrap();
        assert!(memory.starts_with("1Gi}"), "write the new limit here");
        let limits = Options::try_parse_from(["berth-gateway", "--domain=example.com"])
            .unwrap()
            .limits();
        // In this process, towards the reader, and from the other side. Of what its options limit, the kernel reckons twice.
        let of_client = relay::BUFFER + 2 * sockets::UNACKNOWLEDGED + 2 * sockets::UNREAD;
        let of_server = relay::BUFFER + sockets::UNSENT as usize + 2 * sockets::UNREAD_OF_FAR;
        assert_eq!(of_client, 784 << 10, "the help and the guide say so");
        // There is a place for each direction, so this is also enough where both wait.
        let of_stalled = of_client.max(of_server);
        // A task, and two sockets without data.
        let of_any = 12 << 10;
        // What the kernel took for clients that read nothing is not counted before something waits here. All of one tenant may be such.
        let uncounted = limits.of_tenant * sockets::UNSENT as usize;
        let all = limits.stalled * of_stalled + uncounted + limits.connections * of_any;
        assert!(all < 900 << 20, "{} MiB", all >> 20);
    }

    #[test]
    fn limits_that_are_not_set_follow_from_others() {
        let limits = |flags: &[&str]| {
            let required = ["berth-gateway", "--domain=example.com"];
            let options = Options::try_parse_from(required.iter().chain(flags)).unwrap();
            let Limits {
                handshakes,
                of_tenant_source,
                held,
                ..
            } = options.limits();
            (handshakes, of_tenant_source, held.of_tenant_source)
        };
        assert_eq!(limits(&[]), (5_000, 1_000, 125));
        let of_others = [
            "--max-connections=100",
            "--max-connections-per-tenant=1",
            "--max-held-connections-per-tenant=6",
        ];
        assert_eq!(limits(&of_others), (25, 1, 2));
        let own = [
            "--max-handshakes=7",
            "--max-connections-per-tenant-and-source=8",
            "--max-held-connections-per-tenant-and-source=9",
        ];
        assert_eq!(limits(&own), (7, 8, 9));
    }

    #[test]
    fn the_last_of_equal_flags_counts_and_networks_are_added() {
        let flags = [
            "--domain=example.com",
            "--wake-timeout=60",
            "--proxy-protocol-from=10.0.0.0/8",
            "--wake-timeout=90",
            "--proxy-protocol-from=fd00::/64",
        ];
        let options = Options::try_parse_from(["berth-gateway"].iter().chain(&flags)).unwrap();
        assert_eq!(options.wake_timeout, 90);
        assert_eq!(options.proxy_protocol_from.len(), 2);
    }
}
