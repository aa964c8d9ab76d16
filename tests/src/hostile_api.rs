//! An aggregated API server as a team could write one for its tenant: it answers Berth's control with what would end or stop a client that
//! believes it, and everybody else as it should, so that the tenant's API server passes requests on to it.
//!
//! It runs in the process of a test ([`HostileApi::start`]), or in a pod (`src/bin/hostile_api.rs`).

use crate::{
    objects::apply,
    tls::{TlsListener, machine_address, server_certificate},
    wait::{SOON, until},
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    serve::Listener,
};
use berth_api::PLATFORM_USER;
use berth_control::apply::is_status;
use berth_runtime::answers::MAX_ANSWER;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use kube::{Api, Client, api::DeleteParams};
use serde_json::{Value, json};
use std::{future::pending, net::SocketAddr};
use tokio::task::JoinHandle;

/// What the server says where it has nothing else to say.
pub const REFUSAL: &str = "the team's own server refuses";

/// Version of all groups.
const VERSION: &str = "v1";
/// Resource of all kinds.
const RESOURCE: &str = "x";
/// UID of all objects.
const UID: &str = "5e7f0000-0000-4000-8000-000000000001";
/// Resources of [`Group::Chain`]. The client's own discovery makes 2^39 calls for them.
const CHAINED: usize = 40;
/// An entry of the list of [`Group::Long`].
const ENTRY: &str = r#"{"name":"others","singularName":"other","namespaced":true,"kind":"Other","verbs":[]},"#;
/// The header in which an API server says whose request it passes on.
const USER: &str = "x-remote-user";

/// A group of the server, by what it answers control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A list of resources whose names continue each other. Its objects are controlled by themselves, and none can be changed.
    Chain,
    /// Nothing.
    Silent,
    /// A list of resources that is longer than what control reads of any answer.
    Long,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Chain, Self::Silent, Self::Long];

    /// The kind of its objects, which are in namespaces.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Chain => "Chain",
            Self::Silent => "Silent",
            Self::Long => "Long",
        }
    }

    /// Group and version.
    pub fn api_version(self) -> String {
        format!("{}/{VERSION}", self.name())
    }

    /// The reference to an object of its kind in what the object controls.
    pub fn controller(self, name: &str) -> Value {
        json!({"apiVersion": self.api_version(), "kind": self.kind(), "name": name, "uid": UID, "controller": true})
    }

    fn name(self) -> String {
        format!("{}.hostile.example", self.kind().to_lowercase())
    }

    /// The name of its APIService.
    fn registration(self) -> String {
        format!("{VERSION}.{}", self.name())
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }
}

/// A server that serves until it is dropped.
pub struct HostileApi {
    /// Where it listens.
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for HostileApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl HostileApi {
    /// Serves on a free port, where the egress brokers of this machine's tenants connect to.
    pub async fn start() -> Self {
        Self::serve(SocketAddr::from((machine_address(), 0))).await
    }

    /// Serves at an address.
    pub async fn serve(address: SocketAddr) -> Self {
        let (_, certificate) = server_certificate(address.ip());
        let listener = TlsListener::bind(address, &certificate).await;
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(Bytes::from(long_list()));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { address, server }
    }

    /// Serves until the process ends.
    pub async fn run(mut self) {
        let _ = (&mut self.server).await;
    }
}

/// Registers all groups in a tenant with a Service that leads to the server, and waits until its API server passes requests on.
pub async fn register(client: &Client, namespace: &str, service: &str, port: u16) {
    for group in Group::ALL {
        let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": group.registration()},
        "spec": {
            "group": group.name(), "version": VERSION, "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "service": {"namespace": namespace, "name": service, "port": port},
        }});
        apply(client, "", &object).await.unwrap();
    }
    let services: Api<APIService> = Api::all(client.clone());
    let is_available = |condition: &APIServiceCondition| condition.type_ == "Available" && condition.status == "True";
    for group in Group::ALL {
        let name = group.registration();
        until(&format!("{name} is available"), SOON, async || {
            let service = services.get(&name).await.map_err(|error| error.to_string())?;
            let conditions = service.status.and_then(|status| status.conditions).unwrap_or_default();
            if conditions.iter().any(is_available) {
                Ok(())
            } else {
                Err(format!("{conditions:?}"))
            }
        })
        .await;
    }
}

/// Removes what [`register`] has made.
pub async fn unregister(client: &Client) {
    let services: Api<APIService> = Api::all(client.clone());
    for group in Group::ALL {
        let deleted = services.delete(&group.registration(), &DeleteParams::default()).await;
        match deleted {
            Err(error) if !is_status(&error, 404) => panic!("{error}"),
            _ => {}
        }
    }
}

async fn answer(State(long): State<Bytes>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let user = headers.get(USER).and_then(|user| user.to_str().ok());
    let segments: Vec<&str> = uri.path().split('/').skip(1).collect();
    match segments.as_slice() {
        // Others find no resource, so that no controller of the tenant looks for objects.
        ["apis", group, VERSION] if user != Some(PLATFORM_USER) => list(group, &[]),
        ["apis", group, VERSION] => match Group::find(group) {
            Some(Group::Chain) => list(group, &chain()),
            Some(Group::Silent) => pending().await,
            Some(Group::Long) => ([(CONTENT_TYPE, "application/json")], long).into_response(),
            None => refuse(),
        },
        ["apis", group, VERSION, "namespaces", namespace, RESOURCE, name] if method == Method::GET => {
            Group::find(group).map_or_else(refuse, |group| own_owner(group, namespace, name))
        }
        _ => refuse(),
    }
}

fn list(group: &str, resources: &[Value]) -> Response {
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{VERSION}"),
        "resources": resources});
    Json(list).into_response()
}

/// `x`, `x/`, `x//` and so on: each is a part of all before it.
fn chain() -> Vec<Value> {
    let resource = |slashes: usize| {
        json!({"name": format!("{RESOURCE}{}", "/".repeat(slashes)), "singularName": "", "namespaced": true,
            "kind": Group::Chain.kind(), "verbs": ["get", "list", "patch"]})
    };
    (0..CHAINED).map(resource).collect()
}

fn long_list() -> String {
    let others = ENTRY.repeat(MAX_ANSWER / ENTRY.len() + 1);
    let last =
        json!({"name": RESOURCE, "singularName": "", "namespaced": true, "kind": Group::Long.kind(), "verbs": ["get"]});
    let group_version = Group::Long.api_version();
    format!(
        r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"{group_version}","resources":[{others}{last}]}}"#
    )
}

/// An object that is controlled by itself.
fn own_owner(group: Group, namespace: &str, name: &str) -> Response {
    let object = json!({"apiVersion": group.api_version(), "kind": group.kind(),
        "metadata": {"namespace": namespace, "name": name, "uid": UID, "ownerReferences": [group.controller(name)]}});
    Json(object).into_response()
}

fn refuse() -> Response {
    let code = StatusCode::METHOD_NOT_ALLOWED;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": REFUSAL,
        "reason": "MethodNotAllowed", "code": code.as_u16()});
    (code, Json(status)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::IgnoredAny;

    #[test]
    fn the_long_list_is_one_and_too_long() {
        let list = long_list();
        assert!(serde_json::from_str::<IgnoredAny>(&list).is_ok());
        assert!(list.len() > MAX_ANSWER);
    }
}
