//! A host cluster on this machine: real etcd, kube-apiserver, kube-controller-manager and kube-scheduler as supervised
//! child processes, and kwok in place of kubelets, on simulated GPU nodes.
//!
//! [`HostCluster::start`] brings it up, or completes what is left of one: it is idempotent, and restarts what was killed.
//! Everything lies in one directory ([`Home`]); [`destroy`] removes every trace. Tests use [`TestHost`].
//!
//! Simulated pods run as soon as they are bound. These annotations of a pod change how it behaves:
//!
//! | annotation | meaning |
//! |---|---|
//! | `simulation.berth.dev/start-after` | a Go duration between binding and running |
//! | `simulation.berth.dev/run-for` | how long a pod with restart policy Never or OnFailure runs (5s) |
//! | `simulation.berth.dev/exit-code` | its exit code (0) |
//! | `simulation.berth.dev/stop-after` | how long a deleted pod takes to end (0s) |

mod admission;
mod bootstrap;
mod chart;
mod components;
mod config;
mod dra_driver;
mod error;
mod host;
pub mod images;
mod kubeconfigs;
mod nodes;
mod paths;
mod pki;
mod ports;
pub mod proxy;
mod real;
mod revision;
mod scheduler;
mod stages;
mod test_host;

pub use chart::ChartInstall;
pub use components::process;
pub use config::{HostClusterConfig, Purpose};
pub use error::Error;
pub use host::{Datastore, HostCluster, client_from, destroy};
pub use kubeconfigs::read_kubeconfig;
pub use nodes::{NodePlan, NodePlanError, NodeShape, RACK_LABEL, SYSTEM_NODE};
pub use paths::Home;
pub use ports::Ports;
pub use real::obstacle_to_real_nodes;
pub use test_host::TestHost;
