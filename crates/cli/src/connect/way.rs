//! Which way leads from here to a tenant's API server. They are tried in this order:
//!
//! 1. the address in the kubeconfig, which is often a name at the gateway;
//! 2. load balancers and ports of nodes, for example where that name does not resolve;
//! 3. the API server of the host, which forwards to a pod.

use std::time::Duration;

use berth_api::{SleepMode, TenantCluster};
use berth_runtime::client;
use futures::future::select_ok;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Config;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use super::addresses::Target;
use super::forward::Forward;
use crate::error::{Error, describe};
use crate::host::Host;
use crate::output::{print_note, print_text};
use crate::sleep::how_to_wake;
use crate::tenant::{self, TenantName};
use crate::user_config::document::{self, Server};

/// How long an address may take for an answer before another way is tried.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a tenant that sleeps: the gateway holds the connection while the tenant wakes.
const WAKE_TIMEOUT: Duration = Duration::from_mins(1);

/// A kubeconfig that reaches the tenant from here.
pub(super) struct Way {
    pub(super) kubeconfig: Value,
    /// Where the API server is reached, if not at the address in the tenant's own kubeconfig.
    pub(super) server: Option<Server>,
    /// Keeps the way open.
    pub(super) forward: Option<Forward>,
}

/// What can be tried.
trait Routes {
    /// What keeps the last way open.
    type Forward;

    /// Whether the API server answers there; none: at the address in the kubeconfig. The error says why not.
    async fn reach(&self, server: Option<&Server>) -> Result<(), String>;

    /// Load balancers and ports of nodes that lead to it, as far as the user may know them.
    async fn find_servers(&self) -> Vec<Server>;

    /// Opens the way through the API server of the host.
    async fn open_forward(&self) -> Result<(Server, Self::Forward), String>;
}

/// The way that was found.
#[derive(Debug, PartialEq, Eq)]
enum Choice<F> {
    /// The address in the kubeconfig.
    Own,
    /// A load balancer, or a port of a node.
    Server(Server),
    /// Through the API server of the host.
    Forward(Server, F),
}

/// The first way that reaches the API server, whose own address is `endpoint`; `must_forward`: the last one, in any case. The errors say why each
/// does not, in their order.
async fn choose<R: Routes>(routes: &R, endpoint: &str, must_forward: bool) -> Result<Choice<R::Forward>, Vec<String>> {
    let mut obstacles = Vec::new();
    if !must_forward {
        match routes.reach(None).await {
            Ok(()) => return Ok(Choice::Own),
            Err(error) => obstacles.push(format!("at {endpoint} ({error})")),
        }
        // Nodes may drop what comes, so that each takes the whole time.
        let servers = routes.find_servers().await;
        let attempts = servers.iter().map(|server| {
            Box::pin(async move {
                match routes.reach(Some(server)).await {
                    Ok(()) => Ok(server),
                    Err(error) => Err(format!("at {} ({error})", server.url)),
                }
            })
        });
        let attempts: Vec<_> = attempts.collect();
        if !attempts.is_empty() {
            match select_ok(attempts).await {
                Ok((server, _)) => return Ok(Choice::Server(server.clone())),
                Err(obstacle) => obstacles.push(obstacle),
            }
        }
        for obstacle in &obstacles {
            print_note(format_args!("not reached {obstacle}"));
        }
    }
    let opened = match routes.open_forward().await {
        Ok((server, forward)) => routes.reach(Some(&server)).await.map(|()| (server, forward)),
        Err(error) => Err(error),
    };
    opened
        .map(|(server, forward)| Choice::Forward(server, forward))
        .map_err(|error| {
            obstacles.push(format!("through the host's API server ({error})"));
            obstacles
        })
}

/// Finds the way to a tenant whose kubeconfig this is, and says which one it is. `must_forward`: it is the one through the host's API server.
///
/// # Errors
/// None reaches it, or the tenant sleeps and no connection wakes it.
pub(super) async fn find_way(
    host: &Host,
    name: &TenantName,
    tenant: &TenantCluster,
    kubeconfig: Value,
    must_forward: bool,
) -> Result<Way, Error> {
    let is_asleep = tenant::is_asleep(tenant);
    let mode = tenant.spec.sleep.as_ref().map(|sleep| sleep.mode);
    if is_asleep && mode == Some(SleepMode::Asleep) {
        let how = how_to_wake(name, tenant);
        return Err(Error::Failed(format!(
            "{name} sleeps, and no connection wakes it: {how}"
        )));
    }
    if is_asleep && !must_forward {
        print_text(format_args!(
            "· {name} sleeps; a connection through the gateway wakes it"
        ));
    }
    let routes = TenantRoutes {
        host,
        tenant,
        kubeconfig: &kubeconfig,
        patience: if is_asleep { WAKE_TIMEOUT } else { ANSWER_TIMEOUT },
    };
    let endpoint = tenant.status.as_ref().and_then(|status| status.endpoint.as_deref());
    let endpoint = endpoint.unwrap_or("its address");
    let chosen = choose(&routes, endpoint, must_forward).await.map_err(|obstacles| {
        let fix = if is_asleep {
            format!("; it sleeps: {}", how_to_wake(name, tenant))
        } else {
            String::new()
        };
        Error::Failed(format!("{name} is not reached: {}{fix}", obstacles.join(", nor ")))
    })?;
    Ok(match chosen {
        Choice::Own => {
            print_text(format_args!("· {name} is reached at its address {endpoint}"));
            Way {
                kubeconfig,
                server: None,
                forward: None,
            }
        }
        Choice::Server(server) => {
            print_text(format_args!("· {name} is reached at {}", server.url));
            Way {
                kubeconfig: document::with_server(&kubeconfig, &server),
                server: Some(server),
                forward: None,
            }
        }
        Choice::Forward(server, forward) => {
            print_text(format_args!(
                "· {name} is reached through the API server of the host, at {}",
                server.url
            ));
            Way {
                kubeconfig: document::with_server(&kubeconfig, &server),
                server: Some(server),
                forward: Some(forward),
            }
        }
    })
}

/// Those of a tenant.
struct TenantRoutes<'a> {
    host: &'a Host,
    tenant: &'a TenantCluster,
    kubeconfig: &'a Value,
    /// How long an answer may take.
    patience: Duration,
}

impl Routes for TenantRoutes<'_> {
    type Forward = Forward;

    async fn reach(&self, server: Option<&Server>) -> Result<(), String> {
        match server {
            None => ask_version(self.kubeconfig, self.patience).await,
            Some(server) => ask_version(&document::with_server(self.kubeconfig, server), self.patience).await,
        }
    }

    async fn find_servers(&self) -> Vec<Server> {
        let client = &self.host.client;
        let Some(target) = Target::of(self.tenant) else {
            return Vec::new();
        };
        // Teams may rarely read them: then this way does not exist.
        let services: Api<Service> = Api::namespaced(client.clone(), &target.namespace);
        let Ok(Some(service)) = services.get_opt(target.name).await else {
            return Vec::new();
        };
        let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
        let nodes = nodes.map(|list| list.items).unwrap_or_default();
        target.servers(&service, &nodes)
    }

    async fn open_forward(&self) -> Result<(Server, Forward), String> {
        let text = |error: Error| error.to_string();
        let status = self.tenant.status.as_ref();
        let namespace = status.and_then(|status| status.control_plane_namespace.as_ref());
        let namespace = namespace.ok_or("it has no control plane yet")?;
        let streams = self.host.stream_client().map_err(text)?;
        let forward = Forward::start(self.host.client.clone(), streams, namespace).await;
        forward.map(|forward| (forward.server.clone(), forward)).map_err(text)
    }
}

/// Asks the API server of this kubeconfig for its version, which may take so long.
async fn ask_version(kubeconfig: &Value, patience: Duration) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig.clone()).map_err(|error| text(&error))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| text(&error))?;
    config.connect_timeout = Some(patience);
    config.default_retry = false;
    let client = client::for_person_in_tenant(config).map_err(|error| text(&error))?;
    match tokio::time::timeout(patience, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        // The API server answers; what the user may do there is another question.
        Ok(Err(kube::Error::Api(status))) if status.code == 401 || status.code == 403 => Ok(()),
        Ok(Err(error)) => Err(describe(&error)),
        Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const OWN: &str = "own";
    const FORWARD: &str = "forward";

    fn server(url: &str) -> Server {
        Server {
            url: url.into(),
            tls_name: "kubernetes".into(),
        }
    }

    /// Ways of which those in `open` lead to the API server.
    struct Fakes {
        servers: Vec<&'static str>,
        open: Vec<&'static str>,
        tried: RefCell<Vec<String>>,
    }

    impl Routes for Fakes {
        type Forward = &'static str;

        async fn reach(&self, server: Option<&Server>) -> Result<(), String> {
            let url = server.map_or(OWN, |server| &server.url);
            self.tried.borrow_mut().push(url.into());
            let is_open = self.open.contains(&url);
            if is_open {
                Ok(())
            } else {
                Err(format!("{url} is closed"))
            }
        }

        async fn find_servers(&self) -> Vec<Server> {
            self.servers.iter().map(|url| server(url)).collect()
        }

        async fn open_forward(&self) -> Result<(Server, Self::Forward), String> {
            Ok((server(FORWARD), "open"))
        }
    }

    async fn choose_among(
        servers: &[&'static str],
        open: &[&'static str],
        must_forward: bool,
    ) -> (Result<Choice<&'static str>, Vec<String>>, Vec<String>) {
        let fakes = Fakes {
            servers: servers.to_vec(),
            open: open.to_vec(),
            tried: RefCell::default(),
        };
        let chosen = choose(&fakes, "https://own", must_forward).await;
        (chosen, fakes.tried.into_inner())
    }

    #[tokio::test]
    async fn the_first_way_that_leads_there_is_taken() {
        let nodes = ["node-1", "node-2"];
        for (servers, open, expected, tried) in [
            (&nodes[..], &[OWN, "node-1", FORWARD][..], Choice::Own, &[OWN][..]),
            // The name of the gateway does not resolve.
            (
                &nodes[..],
                &["node-2", FORWARD][..],
                Choice::Server(server("node-2")),
                &[OWN, "node-1", "node-2"][..],
            ),
            (
                &nodes[..],
                &[FORWARD][..],
                Choice::Forward(server(FORWARD), "open"),
                &[OWN, "node-1", "node-2", FORWARD][..],
            ),
            (
                &[][..],
                &[FORWARD][..],
                Choice::Forward(server(FORWARD), "open"),
                &[OWN, FORWARD][..],
            ),
        ] {
            let (chosen, order) = choose_among(servers, open, false).await;
            assert_eq!(chosen, Ok(expected));
            assert_eq!(order, tried);
        }
    }

    #[tokio::test]
    async fn one_who_wants_to_forward_tries_nothing_else() {
        let (chosen, tried) = choose_among(&["node-1"], &[OWN, "node-1", FORWARD], true).await;
        assert_eq!(chosen, Ok(Choice::Forward(server(FORWARD), "open")));
        assert_eq!(tried, [FORWARD]);
    }

    #[tokio::test]
    async fn a_tenant_that_is_not_reached_has_an_obstacle_on_each_way() {
        let (chosen, _) = choose_among(&["node-1"], &[], false).await;
        let expected = [
            "at https://own (own is closed)",
            "at node-1 (node-1 is closed)",
            "through the host's API server (forward is closed)",
        ];
        assert_eq!(chosen.unwrap_err(), expected);
    }
}
