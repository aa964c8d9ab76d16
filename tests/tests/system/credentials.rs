//! Credentials of a tenant: its administrators' certificate is revoked, and tokens of its ServiceAccounts are verified outside.

use crate::sleep::kill_control;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_api::{AccessSubject, RotationPhase, SubjectKind, conditions, labels};
use berth_tests::{
    command_line::CommandLine,
    gateway::{Gateway, host_name},
    objects::{gpu_pod, phase},
    tenant::{Tenant, cluster, patient, patient_with},
    test_cluster::TestCluster,
    token,
    wait::{SOON, until, until_true},
};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
        rbac::v1::ClusterRoleBinding,
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    config::{AuthInfo, Kubeconfig},
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinHandle;

const NAMESPACE: &str = "sys-credentials";
const NAME: &str = "rotated";

/// The code with which the tenant's API server answers who has these credentials; none if it does not answer.
async fn answer(kubeconfig: &str) -> Option<u16> {
    match patient(kubeconfig).await.apiserver_version().await {
        Ok(_) => Some(200),
        Err(kube::Error::Api(status)) => Some(status.code),
        Err(_) => None,
    }
}

async fn until_answer(kubeconfig: &str, code: u16) {
    until(&format!("the answer is {code}"), SOON, async || {
        match answer(kubeconfig).await {
            Some(found) if found == code => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

async fn kubeconfig_in_secret(host: &TestCluster, name: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), NAMESPACE);
    let data = secrets.get(&format!("{name}-kubeconfig")).await.unwrap().data.unwrap();
    String::from_utf8(data["kubeconfig"].0.clone()).unwrap()
}

/// Changes the Secret with the kubeconfig, as somebody of the team may.
async fn change_secret(host: &TestCluster, name: &str, patch: &Value) {
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), NAMESPACE);
    secrets
        .patch(
            &format!("{name}-kubeconfig"),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .unwrap();
}

async fn patch_tenant(host: &TestCluster, name: &str, patch: &Value) {
    host.tenants(NAMESPACE)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

/// Asks for new credentials now; returns the time of the request.
async fn request_rotation(host: &TestCluster, name: &str) -> Timestamp {
    let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    let patch = json!({"metadata": {"annotations": {labels::CREDENTIALS_ROTATION_REQUESTED_AT: at.to_string()}}});
    patch_tenant(host, name, &patch).await;
    at
}

/// Waits until the rotation is in a phase; returns when it was asked for.
async fn until_rotation(host: &TestCluster, name: &str, phase: RotationPhase) -> Timestamp {
    let tenants = host.tenants(NAMESPACE);
    until(&format!("the rotation is {phase:?}"), SOON, async || {
        let status = tenants.get(name).await.map_err(|error| error.to_string())?.status;
        let status = status.unwrap_or_default();
        match status.credentials {
            Some(credentials) if credentials.phase == phase => Ok(credentials.requested_at.0),
            other => Err(format!("{other:?} {:?}", status.conditions)),
        }
    })
    .await
}

/// Creates a pod in the tenant and waits until it runs on the host, which it does through the syncer alone.
async fn run_pod(tenant: &Tenant, client: &Client, name: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod(name, 1)).await.unwrap();
    until(&format!("{name} of {} runs", tenant.name), SOON, async || {
        match pods.get(name).await {
            Ok(pod) if phase(&pod) == "Running" => Ok(()),
            Ok(pod) => Err(format!("{:?}", pod.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}

/// A watch that ends with its connection, or in an hour.
async fn open_watch(client: &Client) -> JoinHandle<()> {
    let request = http::Request::get("/api/v1/secrets?watch=true&timeoutSeconds=3600")
        .body(Vec::new())
        .unwrap();
    let answer = client.request_stream(request).await.unwrap();
    tokio::spawn(answer.lines().for_each(|_| async {}))
}

pub(crate) async fn old_certificates_are_refused_after_a_rotation_while_control_is_killed(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, NAMESPACE, &cluster(NAME, &[("train", "h100", 1)])).await;
    run_pod(&tenant, &tenant.client, "before").await;
    assert_eq!(answer(&tenant.kubeconfig).await, Some(200));
    let watch = open_watch(&tenant.client).await;
    assert!(!watch.is_finished());

    let at = request_rotation(&host, NAME).await;
    kill_control(&host, &[20, 150, 600, 1500]).await;
    assert_eq!(until_rotation(&host, NAME, RotationPhase::Completed).await, at);

    until_answer(&tenant.kubeconfig, 401).await;
    until_true("connections from before are closed", SOON, async || watch.is_finished()).await;
    let rotated = Tenant::ready(&host, NAMESPACE, NAME).await;
    assert_ne!(rotated.kubeconfig, tenant.kubeconfig);
    assert_eq!(rotated.kubeconfig, kubeconfig_in_secret(&host, NAME).await);
    until_answer(&rotated.kubeconfig, 200).await;
    // Servers of the tenant's own learn from its API server whose certificates to accept. They do not accept the old ones either.
    let maps: Api<ConfigMap> = Api::namespaced(rotated.client.clone(), "kube-system");
    until_true("the old authority is not published any more", SOON, async || {
        let map = maps.get("extension-apiserver-authentication").await;
        let authorities = map.ok().and_then(|map| map.data?.remove("client-ca-file"));
        authorities.is_some_and(|text| text.matches("BEGIN CERTIFICATE").count() == 1)
    })
    .await;
    // What ran goes on, and what is new is synced.
    let pods: Api<Pod> = Api::namespaced(rotated.client.clone(), "default");
    assert_eq!(phase(&pods.get("before").await.unwrap()), "Running");
    run_pod(&rotated, &rotated.client, "after").await;
    let all = host
        .tenants(NAMESPACE)
        .get(NAME)
        .await
        .unwrap()
        .status
        .unwrap_or_default()
        .conditions;
    assert!(conditions::is_true(&all, conditions::CREDENTIALS_ROTATED), "{all:?}");

    // The command line does the same, and waits for it.
    let berth = CommandLine::of_administrator(&host);
    let name = format!("{NAMESPACE}/{NAME}");
    let output = berth.berth(&["credentials", "rotate", &name, "--wait"]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until_answer(&rotated.kubeconfig, 401).await;
    let second = kubeconfig_in_secret(&host, NAME).await;
    until_answer(&second, 200).await;
    machine_gets_a_kubeconfig_that_expires(&berth, &name, &second).await;
    tenant.delete(&host).await;
}

/// Lets the phase of a rotation have begun 15 minutes ago. Control that runs remembers when it did.
async fn backdate(host: &TestCluster, tenant: &Tenant) {
    const STATE: &str = "client-rotation.json";
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let data = secrets.get("pki").await.unwrap().data.unwrap();
    let mut rotation: Value = serde_json::from_slice(&data[STATE].0).unwrap();
    let since = Timestamp::now() - SignedDuration::from_mins(15);
    rotation["since"] = since.to_string().into();
    let patch = json!({"data": {STATE: ByteString(rotation.to_string().into_bytes())}});
    secrets
        .patch("pki", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Who may write the Secret with the kubeconfig keeps nobody's access and no old certificate.
pub(crate) async fn a_secret_in_the_way_stops_neither_access_rules_nor_a_rotation(host: Arc<TestCluster>) {
    const BLOCKED: &str = "blocked";
    let mut wanted = cluster(BLOCKED, &[]);
    wanted.spec.access.admins = vec![AccessSubject {
        kind: SubjectKind::User,
        name: "oidc:eve".into(),
    }];
    let tenant = Tenant::create(&host, NAMESPACE, &wanted).await;
    change_secret(
        &host,
        BLOCKED,
        &json!({"metadata": {"labels": {(labels::TENANT): null}}}),
    )
    .await;
    patch_tenant(&host, BLOCKED, &json!({"spec": {"access": {"admins": null}}})).await;
    let bindings: Api<ClusterRoleBinding> = Api::all(tenant.client.clone());
    until_true("nobody is an admin any more", SOON, async || {
        let binding = bindings.get("berth:access:admins").await.unwrap();
        binding.subjects.unwrap_or_default().is_empty()
    })
    .await;

    let at = request_rotation(&host, BLOCKED).await;
    assert_eq!(until_rotation(&host, BLOCKED, RotationPhase::Issuing).await, at);
    until_answer(&tenant.kubeconfig, 200).await;
    backdate(&host, &tenant).await;
    kill_control(&host, &[20]).await;
    assert_eq!(until_rotation(&host, BLOCKED, RotationPhase::Completed).await, at);
    until_answer(&tenant.kubeconfig, 401).await;

    // Berth's own Secret is replaced if somebody made it immutable.
    let own = json!({"metadata": {"labels": {(labels::TENANT): tenant.id.slug()}}, "immutable": true});
    change_secret(&host, BLOCKED, &own).await;
    let rotated = Tenant::ready(&host, NAMESPACE, BLOCKED).await;
    assert_ne!(rotated.kubeconfig, tenant.kubeconfig);
    until_answer(&rotated.kubeconfig, 200).await;
    tenant.delete(&host).await;
}

/// `berth kubeconfig --ttl` prints a kubeconfig of a ServiceAccount, without any other credential.
async fn machine_gets_a_kubeconfig_that_expires(berth: &CommandLine, name: &str, administrators: &str) {
    let file = berth.folder().join("machine");
    let arguments = [
        "kubeconfig",
        name,
        "--ttl",
        "10m",
        "--service-account",
        "default/default",
        "--output-file",
    ];
    let output = berth.berth(&[&arguments[..], &[file.to_str().unwrap()]].concat()).await;
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && messages.contains("valid until"),
        "{messages}"
    );
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("client-key-data"));
    let machine: Value = serde_saphyr::from_str(&text).unwrap();
    let token = machine["users"][0]["user"]["token"].as_str().unwrap();
    assert!(!messages.contains(token));
    let user = token::user(administrators, token).await;
    assert_eq!(user.as_deref(), Ok("system:serviceaccount:default:default"));
}

/// A client at the gateway that has this token, or no credentials at all.
async fn client_at(gateway: &Gateway, tenant: &Tenant, token: Option<&str>) -> Client {
    let mut kubeconfig: Kubeconfig = gateway.kubeconfig(tenant);
    let user: AuthInfo = serde_json::from_value(token.map_or(json!({}), |token| json!({ "token": token }))).unwrap();
    kubeconfig.auth_infos[0].auth_info = Some(user);
    patient_with(kubeconfig).await
}

/// What everybody gets at a path: JSON, or the code of the refusal.
async fn get(client: &Client, path: &str) -> Result<Value, u16> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    match client.request_text(request).await {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(_) => Err(0),
    }
}

async fn request_token(client: &Client, audience: Option<&str>) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: audience.map(|audience| vec![audience.to_owned()]),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request("default", &PostParams::default(), &request)
        .await;
    answer.unwrap().status.unwrap().token.unwrap()
}

fn decode(part: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// Verifies a token as Vault or a cloud does, with nothing but the document and the keys. Returns its claims.
fn verify(token: &str, document: &Value, keys: &Value) -> Result<Value, &'static str> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, signature] = parts[..] else {
        return Err("no token");
    };
    let id = decode(header)["kid"].clone();
    let key = keys["keys"].as_array().unwrap().iter().find(|key| key["kid"] == id);
    let key = key.ok_or("unknown key")?;
    assert_eq!(
        (&key["kty"], &key["crv"], &key["alg"]),
        (&json!("EC"), &json!("P-256"), &json!("ES256"))
    );
    let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap();
    // An uncompressed point: 4, x, y.
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(format!("{header}.{payload}").as_bytes(), &signature)
        .map_err(|_| "wrong signature")?;
    let claims = decode(payload);
    if claims["iss"] != document["issuer"] {
        return Err("another issuer");
    }
    if claims["exp"].as_i64().unwrap() <= Timestamp::now().as_second() {
        return Err("expired");
    }
    Ok(claims)
}

async fn set_issuer(host: &TestCluster, tenant: &Tenant, authentication: &Value) {
    let spec = json!({ "authentication": authentication });
    host.patch_tenant(&tenant.namespace, &tenant.name, &spec).await;
}

/// Whether a token is accepted by the tenant itself.
async fn until_accepted(gateway: &Gateway, tenant: &Tenant, token: &str) {
    let client = client_at(gateway, tenant, Some(token)).await;
    until_true("the tenant accepts the token", SOON, async || {
        client.apiserver_version().await.is_ok()
    })
    .await;
}

/// With `serviceAccountIssuer: Gateway` everybody reads the keys of a tenant at the gateway and verifies its tokens. Tokens that exist stay
/// valid when the setting changes.
pub(crate) async fn tokens_are_verified_by_the_document_at_the_gateway(
    host: &TestCluster,
    tenant: &Tenant,
    gateway: &Gateway,
) {
    const DOCUMENT: &str = "/.well-known/openid-configuration";
    const KEYS: &str = "/openid/v1/jwks";
    let (anybody, admin) = (
        client_at(gateway, tenant, None).await,
        patient_with(gateway.kubeconfig(tenant)).await,
    );
    assert_eq!(get(&anybody, DOCUMENT).await, Err(401));
    assert_eq!(get(&anybody, KEYS).await, Err(401));
    let earlier = request_token(&admin, None).await;

    set_issuer(host, tenant, &json!({"serviceAccountIssuer": "Gateway"})).await;
    let document = until("the document is public", SOON, async || get(&anybody, DOCUMENT).await).await;
    let url = format!("https://{}:{}", host_name(tenant), gateway.address().port());
    assert_eq!(
        (&document["issuer"], &document["jwks_uri"]),
        (&json!(url), &json!(format!("{url}{KEYS}")))
    );
    let keys = get(&anybody, KEYS).await.unwrap();
    // Nothing else is public.
    for path in ["/version", "/api", "/openid/v1", "/metrics"] {
        assert_eq!(get(&anybody, path).await, Err(401), "{path}");
    }

    let token = request_token(&admin, Some("vault")).await;
    let claims = verify(&token, &document, &keys).unwrap();
    assert_eq!(claims["aud"], json!(["vault"]));
    assert_eq!(claims["sub"], "system:serviceaccount:default:default");
    assert_eq!(verify(&earlier, &document, &keys), Err("another issuer"));
    let signature = earlier.rsplit_once('.').unwrap().1;
    let forged = format!("{}.{signature}", token.rsplit_once('.').unwrap().0);
    assert_eq!(verify(&forged, &document, &keys), Err("wrong signature"));
    until_accepted(gateway, tenant, &earlier).await;

    // Back again: the keys are not public any more, and tokens of the gateway's issuer stay valid.
    let of_gateway = request_token(&admin, None).await;
    set_issuer(host, tenant, &Value::Null).await;
    until("the document is not public any more", SOON, async || {
        match get(&anybody, DOCUMENT).await {
            Err(401) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    until_accepted(gateway, tenant, &of_gateway).await;
    Tenant::ready(host, &tenant.namespace, &tenant.name).await;
}
