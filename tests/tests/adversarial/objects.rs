//! Service and endpoint hijack, volumes and devices of others, GPUs past the scheduler, foreign host names: tried as a
//! tenant's admin through the tenant's own API server. And the syncer's webhook, called by clients that reach its port.

use crate::shared::attacker;
use base64::Engine as _;
use berth_api::labels;
use berth_control::control_plane::API_SERVER;
use berth_tests::{
    objects::apply,
    scrape::flag,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, PersistentVolumeClaim, Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, NetworkPolicy},
    resource::v1::ResourceClaim,
};
use kube::{Api, Resource, ResourceExt, api::ListParams, core::NamespaceResourceScope};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Host objects of a kind that the syncer made from the tenant's.
async fn on_host<K>(host: &TestCluster, tenant: &Tenant) -> Vec<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let mine = ListParams::default().labels("berth.dev/managed-by=syncer");
    api.list(&mine).await.unwrap().items
}

fn stands_for<K: Resource>(object: &K, name: &str) -> bool {
    object.annotations().get(labels::ORIGIN_NAME).map(String::as_str) == Some(name)
}

/// The message of the Event that the team gets about an object.
async fn event_about(tenant: &Tenant, about: &str) -> String {
    let events: Api<Event> = Api::namespaced(tenant.client.clone(), "default");
    let about_it = ListParams::default().fields(&format!("involvedObject.name={about}"));
    until(&format!("the team gets an Event about {about}"), SOON, async || {
        let list = events.list(&about_it).await.map_err(|error| error.to_string())?;
        let messages: Vec<String> = list
            .into_iter()
            .filter(|event| {
                event
                    .reason
                    .as_deref()
                    .is_some_and(|reason| reason.starts_with("Field"))
            })
            .filter_map(|event| event.message)
            .collect();
        messages.first().cloned().ok_or_else(|| "no Event".to_owned())
    })
    .await
}

pub(crate) async fn objects_beyond_the_tenant_are_rejected_with_a_reason(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "adv-objects", &cluster("objects", &[("a", "h100", 1)])).await;
    check_foreign_addresses(&tenant).await;
    check_foreign_names(&tenant).await;
    check_policy_that_opens_everything(&host, &tenant).await;
    check_devices_past_the_scheduler(&host, &tenant).await;

    // None of it is on the host.
    assert!(on_host::<PersistentVolumeClaim>(&host, &tenant).await.is_empty());
    assert!(on_host::<Ingress>(&host, &tenant).await.is_empty());
    assert!(on_host::<ResourceClaim>(&host, &tenant).await.is_empty());
    for slice in on_host::<EndpointSlice>(&host, &tenant).await {
        assert!(
            slice.endpoints.unwrap_or_default().is_empty(),
            "a foreign address is on the host"
        );
    }
    for service in on_host::<Service>(&host, &tenant).await {
        assert!(stands_for(&service, "lure"), "{} is on the host", service.name_any());
    }
    tenant.delete(&host).await;
}

async fn make(tenant: &Tenant, object: Value) -> kube::Result<kube::api::DynamicObject> {
    apply(&tenant.client, "default", &object).await
}

async fn check_foreign_addresses(tenant: &Tenant) {
    // CVE-2020-8554: a foreign address. Denied at once.
    let port = json!([{"port": 80}]);
    let stolen = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "stolen"},
        "spec": {"selector": {"a": "b"}, "ports": port, "externalIPs": ["10.96.0.1"]}});
    let error = make(tenant, stolen).await.unwrap_err().to_string();
    assert!(error.contains("spec.externalIPs"), "{error}");
    // Addresses that the host keeps: its own API server's, and one that a Service of the platform may get.
    let taken = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"},
        "spec": {"clusterIP": "10.96.0.1", "selector": {"a": "b"}, "ports": port}});
    let error = make(tenant, taken).await.unwrap_err().to_string();
    assert!(error.contains("keeps for its own Services"), "{error}");

    // CVE-2021-25740: endpoints at the metadata service, the node, other tenants.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lure"}, "spec": {"ports": port}});
    make(tenant, service).await.unwrap();
    let slice = |name: &str, addresses: &[&str]| {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address]}))
            .collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "lure"}},
            "endpoints": endpoints, "ports": [{"port": 80}]})
    };
    let error = make(tenant, slice("lure-0", &["169.254.169.254"]))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("link-local"), "{error}");
    make(tenant, slice("lure-1", &["10.244.0.9", "10.96.0.1"]))
        .await
        .unwrap();
    let message = event_about(tenant, "lure-1").await;
    assert!(message.contains("10.244.0.9"), "{message}");
}

async fn check_foreign_names(tenant: &Tenant) {
    let claim = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec});
    let storage = json!({"requests": {"storage": "1Gi"}});
    let modes = json!(["ReadWriteOnce"]);
    let rule = json!({"host": "bank.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": "lure", "port": {"number": 80}}}}]}});
    let refused = [
        (
            claim(
                "theirs",
                json!({"accessModes": modes, "resources": storage, "volumeName": "pv-of-others"}),
            ),
            "volumeName",
        ),
        (
            claim(
                "slow",
                json!({"accessModes": modes, "resources": storage, "storageClassName": "any"}),
            ),
            "storageClassName",
        ),
        (
            claim(
                "populated",
                json!({"accessModes": modes, "resources": storage, "storageClassName": "any", "dataSourceRef": {
                    "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "theirs"}}),
            ),
            "spec.dataSourceRef: volumes can be filled from PersistentVolumeClaims and VolumeSnapshots only",
        ),
        (
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "bank"},
            "spec": {"ingressClassName": "nginx", "rules": [rule]}}),
            "ingressClassName",
        ),
        (
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu"},
            "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}),
            "deviceClassName",
        ),
    ];
    for (object, field) in refused {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        make(tenant, object)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let message = event_about(tenant, &name).await;
        assert!(message.contains(field), "{name}: {message:?} does not name {field}");
    }
}

async fn check_policy_that_opens_everything(host: &TestCluster, tenant: &Tenant) {
    // It opens nothing that the platform has not declared: not the metadata service, not the machine.
    let open = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}});
    make(tenant, open).await.unwrap();
    until_true("the policy is on the host", SOON, async || {
        on_host::<NetworkPolicy>(host, tenant)
            .await
            .iter()
            .any(|policy| stands_for(policy, "open"))
    })
    .await;
    let policies = on_host::<NetworkPolicy>(host, tenant).await;
    let policy = policies.iter().find(|policy| stands_for(*policy, "open")).unwrap();
    let spec = serde_json::to_value(&policy.spec).unwrap();
    // Its own pods alone: nothing else is declared.
    let rules = spec["egress"].as_array().unwrap();
    let peers: Vec<&Value> = rules.iter().flat_map(|rule| rule["to"].as_array().unwrap()).collect();
    let is_own = |peer: &&Value| peer["podSelector"]["matchLabels"][labels::TENANT] == tenant.id.slug();
    assert!(!peers.is_empty() && peers.iter().all(is_own), "{spec}");
    assert!(
        !spec.to_string().contains("ipBlock") && !spec.to_string().contains("namespaceSelector"),
        "{spec}"
    );
    assert_eq!(spec["podSelector"]["matchLabels"][labels::TENANT], tenant.id.slug());
}

async fn check_devices_past_the_scheduler(host: &TestCluster, tenant: &Tenant) {
    let devices = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "devices"},
        "data": {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MOFED": "enabled", "CUDA_VERSION": "12.4",
            "NVIDIA_API_KEY": "mine", "MODE": "fast"}});
    make(tenant, devices).await.unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"}, "spec": {"containers": [
        {"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "devices"}}]}]}});
    make(tenant, pod).await.unwrap();
    until_true("the ConfigMap is on the host", SOON, async || {
        on_host::<ConfigMap>(host, tenant)
            .await
            .iter()
            .any(|map| stands_for(map, "devices"))
    })
    .await;
    for map in on_host::<ConfigMap>(host, tenant)
        .await
        .iter()
        .filter(|map| stands_for(*map, "devices"))
    {
        let data = map.data.clone().unwrap_or_default();
        assert!(
            data.keys().eq(["MODE", "NVIDIA_API_KEY"]) && data["MODE"] == "fast",
            "{data:?}"
        );
    }
    let pod = until("the pod is on the host", SOON, async || {
        let pods = on_host::<Pod>(host, tenant).await;
        pods.into_iter().find(|pod| stands_for(pod, "greedy")).ok_or("no pod")
    })
    .await;
    assert!(
        !serde_json::to_string(&pod.spec).unwrap().contains("\"all\""),
        "{pod:?}"
    );
}

/// The webhook's answer to a TLS client with this identity.
async fn ask(address: &str, authority: &[u8], identity: Option<(&[u8], &[u8])>) -> std::io::Result<String> {
    let question = b"POST /services HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    say(address, authority, identity, question).await
}

/// What a server with a certificate of `authority` answers, until it closes the connection.
pub(crate) async fn say(
    address: &str,
    authority: &[u8],
    identity: Option<(&[u8], &[u8])>,
    question: &[u8],
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<Vec<_>, _>>()
                .unwrap();
            config
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).unwrap())
                .unwrap()
        }
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(address.rsplit_once(':').unwrap().0.to_owned()).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    stream.write_all(question).await?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        // The server cuts off a client that sends more than it reads.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

pub(crate) async fn only_the_api_server_may_call_the_admission_webhook(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let address = flag(&host, &tenant, "admission-address").expect("the syncer serves a webhook");
    let webhooks: Api<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration> =
        Api::all(tenant.client.clone());
    let list = webhooks.list(&ListParams::default()).await.unwrap();
    let bundle = list
        .iter()
        .flat_map(|configuration| configuration.webhooks.clone().unwrap_or_default())
        .find_map(|webhook| webhook.client_config.ca_bundle)
        .expect("a CA bundle");
    let kubeconfig: Value = serde_saphyr::from_str(&tenant.kubeconfig).unwrap();
    let pem = |field: &str| {
        let text = kubeconfig["users"][0]["user"][field].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap()
    };
    let (certificate, key) = (pem("client-certificate-data"), pem("client-key-data"));
    for (who, identity) in [
        ("a client without a certificate", None),
        ("the tenant's admin", Some((certificate.as_slice(), key.as_slice()))),
    ] {
        match ask(&address, &bundle.0, identity).await {
            Err(_) => {}
            Ok(answer) => assert!(answer.is_empty(), "{who} is answered: {answer}"),
        }
    }
    let files = host.home().tenants().join(tenant.id.hash()).join(API_SERVER);
    let read = |name: &str| std::fs::read(files.join(name)).unwrap();
    let (certificate, key) = (read("admission.crt"), read("admission.key"));
    let answer = until("its own API server is answered", SOON, async || {
        let answer = ask(&address, &bundle.0, Some((&certificate, &key))).await;
        answer.ok().filter(|answer| !answer.is_empty()).ok_or("nothing")
    })
    .await;
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}
