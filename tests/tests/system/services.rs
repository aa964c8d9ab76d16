//! A Service has one address, inside and outside of its tenant, and only the tenant's API server may request one.

use berth_api::names::host_name;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Service};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::json;
use std::{io::ErrorKind, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

pub(crate) async fn one_address_for_each_of_two_tenants(host: Arc<TestCluster>) {
    let (first, second) = (cluster("first", &[]), cluster("second", &[]));
    let (first, second) = tokio::join!(
        Tenant::create(&host, "svc-first", &first),
        Tenant::create(&host, "svc-second", &second)
    );
    let service = |address: Option<&str>| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "clusterIP": address, "selector": {"app": "web"}, "ports": [{"port": 80}]}})
    };
    // The platform may ask to try again.
    let stored = async |tenant: &Tenant| {
        let stored = until("the Service is stored", SOON, async || {
            apply(&tenant.client, "default", &service(None)).await
        });
        let spec = stored.await.data["spec"]["clusterIP"].clone();
        spec.as_str().unwrap().to_owned()
    };
    let of = |tenant: &Tenant| Api::<Service>::namespaced(tenant.client.clone(), "default");
    let address = stored(&first).await;
    let on_host: Api<Service> = Api::namespaced(host.client.clone(), &first.id.workload_namespace());
    let name = host_name("Service", "default", "web");
    let made = on_host.get(&name).await.unwrap();
    assert_eq!(made.spec.unwrap().cluster_ip.as_ref(), Some(&address));

    until("the error says that the address is taken", SOON, async || {
        let taken = apply(&second.client, "default", &service(Some(&address))).await;
        let message = taken.expect_err("two have one address").to_string();
        if message.contains("taken by another Service") {
            Ok(())
        } else {
            Err(message)
        }
    })
    .await;
    assert_ne!(stored(&second).await, address);

    only_the_api_server_may_ask(&first).await;

    // A tenant that deletes the configuration gets it back.
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(first.client.clone());
    let webhooks = configurations.get("berth-services").await.unwrap().webhooks;
    configurations
        .delete("berth-services", &DeleteParams::default())
        .await
        .unwrap();
    let is_back = async || {
        let configuration = configurations.get_opt("berth-services").await.unwrap();
        configuration.is_some_and(|configuration| configuration.webhooks == webhooks)
    };
    until_true("the configuration is back as it was", SOON, is_back).await;
    // The API server adds a condition, which would leave out Services of the platform.
    let changed = Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
    configurations
        .patch("berth-services", &PatchParams::default(), &changed)
        .await
        .unwrap();
    until_true("the configuration is again as it was", SOON, is_back).await;
    of(&first).delete("web", &DeleteParams::default()).await.unwrap();
    until_true("the host's Service is gone", SOON, async || {
        on_host.get_opt(&name).await.is_ok_and(|service| service.is_none())
    })
    .await;
    tokio::join!(first.delete(&host), second.delete(&host));
}

/// Another program of the machine that knows the address, and even trusts the certificate, gets no answer.
async fn only_the_api_server_may_ask(tenant: &Tenant) {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(tenant.client.clone());
    let configuration = configurations.get("berth-services").await.unwrap();
    let client = configuration.webhooks.unwrap().remove(0).client_config;
    let url = client.url.unwrap();
    let address = url.strip_prefix("https://").unwrap().split('/').next().unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&client.ca_bundle.unwrap().0) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    // The client's side of the handshake may end before the server refuses.
    let answer = async {
        let mut stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
        stream
            .write_all(b"POST /services HTTP/1.1\r\nHost: syncer\r\nContent-Length: 2\r\n\r\n{}")
            .await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    match answer.await {
        // A late client finds the connection closed instead.
        Err(error) => assert!(
            error.to_string().contains("ertificate")
                || matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
                ),
            "{error}"
        ),
        Ok(answer) => assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer)),
    }
}
