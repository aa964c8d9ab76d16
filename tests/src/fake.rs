//! Simulated control planes: an HTTPS server with the tenant's own certificate that accepts every request. For tests of
//! control with more tenants than a machine has memory for; everything else in such a test is real.

use async_trait::async_trait;
use axum::{
    Router,
    body::Bytes,
    http::{Method, StatusCode, Uri},
    response::IntoResponse,
};
use berth_api::names::TenantId;
use berth_control::{
    control_plane::{API_SERVER, Component, Endpoints, Form, Ports, SYNCER, ServiceRange},
    runtime::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError, free_ports},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

/// Runs fake control planes inside of this process.
#[derive(Default)]
pub struct FakeRuntime {
    running: Mutex<BTreeMap<String, JoinHandle<()>>>,
}

/// Answers like an API server that accepts everything and stores nothing: with the object it was sent, or with 404.
async fn accept_all(method: Method, uri: Uri, body: Bytes) -> impl IntoResponse {
    let (code, text) = if method != Method::GET {
        (StatusCode::OK, String::from_utf8_lossy(&body).into_owned())
    } else if uri.path().starts_with("/api") {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        (StatusCode::NOT_FOUND, status.to_string())
    } else {
        (StatusCode::OK, "ok".into())
    };
    (code, [("content-type", "application/json")], text)
}

fn port_of(component: &Component, flag: &str) -> u16 {
    let value = component
        .args
        .iter()
        .find_map(|arg| arg.strip_prefix(flag))
        .expect("the flag");
    value
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port")
}

async fn serve_tls(port: u16, config: Arc<ServerConfig>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .expect("the allocated port");
    let acceptor = TlsAcceptor::from(config);
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = TowerToHyperService::new(Router::new().fallback(accept_all));
            let connection = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            drop(connection.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn serve_plain(port: u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .expect("the allocated port");
    axum::serve(listener, Router::new().fallback(accept_all))
        .await
        .expect("a server");
}

fn tls_config(component: &Component) -> Arc<ServerConfig> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(component.files["tls.crt"].as_bytes())
            .map(Result::unwrap)
            .collect();
    let key = PrivateKeyDer::from_pem_slice(component.files["tls.key"].as_bytes()).unwrap();
    Arc::new(
        ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .unwrap(),
    )
}

#[async_trait]
impl ControlPlaneRuntime for FakeRuntime {
    fn versions(&self) -> Vec<String> {
        vec![berth_kubernetes_versions::KUBERNETES_DEFAULT.into()]
    }

    fn allocate_ports(&self, _tenant: &TenantId) -> Result<Ports, RuntimeError> {
        free_ports()
    }

    async fn find_endpoints(
        &self,
        _owner: Owner<'_>,
        ports: &Ports,
        _range: &ServiceRange,
    ) -> Result<Endpoints, RuntimeError> {
        Ok(Endpoints::direct(Ipv4Addr::LOCALHOST.into(), ports))
    }

    fn form(&self, _replicas: u32) -> Form {
        Form::Process
    }

    fn has_dns(&self) -> bool {
        false
    }

    async fn apply_component(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError> {
        let tenant = owner.tenant;
        let key = format!("{}.{}", tenant.hash(), component.name);
        self.running
            .lock()
            .unwrap()
            .entry(key)
            .or_insert_with(|| match component.name {
                API_SERVER => tokio::spawn(serve_tls(port_of(component, "--secure-port="), tls_config(component))),
                SYNCER => tokio::spawn(serve_plain(port_of(component, "--admin-address="))),
                _ => tokio::spawn(std::future::ready(())),
            });
        Ok(ComponentState::Running)
    }

    async fn is_rolled_out(&self, _owner: Owner<'_>, _component: &Component) -> Result<bool, RuntimeError> {
        Ok(true)
    }

    fn publish_kubeconfig(&self, _namespace: &str, _name: &str, _kubeconfig: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn delete_component(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError> {
        let key = format!("{}.{component}", tenant.hash());
        if let Some(task) = self.running.lock().unwrap().remove(&key) {
            task.abort();
        }
        Ok(())
    }

    async fn stop_components(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        self.running.lock().unwrap().retain(|key, task| {
            let is_other = !key.starts_with(tenant.hash());
            if !is_other {
                task.abort();
            }
            is_other
        });
        Ok(())
    }

    async fn delete_tenant(&self, _tenant: &TenantId, _namespace: &str, _name: &str) -> Result<(), RuntimeError> {
        Ok(())
    }
}
