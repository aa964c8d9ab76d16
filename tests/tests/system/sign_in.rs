//! People sign in to a tenant with tokens of OIDC issuers, and machines with tokens of ServiceAccounts.

use berth_api::{TenantCluster, conditions};
use berth_tests::{
    files::binary,
    issuer::{CLIENT, Counts, Issuer},
    objects::{apply, expect_rejected},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    token,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::{path::Path, process::Stdio, sync::Arc};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

/// Namespace, and name of the class and of the tenant.
const NAME: &str = "sign-in";

/// An issuer with prefixes for its names. Without one, it decides on the whole name.
pub(crate) fn authenticator(issuer: &Issuer, prefix: &str) -> Value {
    json!({
        "issuer": {"url": issuer.url, "certificateAuthority": issuer.ca_pem, "audiences": [CLIENT]},
        "claimMappings": {
            "username": {"claim": "sub", "prefix": prefix},
            "groups": {"claim": "groups", "prefix": prefix},
        },
    })
}

async fn patch(host: &TestCluster, spec: &Value) {
    host.patch_tenant(NAME, NAME, spec).await;
}

/// The status code of a list of namespaces and of Secrets.
async fn rights(kubeconfig: &str, token: &str) -> (u16, u16) {
    fn code<T>(answer: kube::Result<T>) -> u16 {
        match answer {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("no answer at all: {error}"),
        }
    }
    let client = token::client(kubeconfig, token).await;
    let params = ListParams::default();
    let namespaces = Api::<Namespace>::all(client.clone()).list(&params).await;
    let secrets = Api::<Secret>::all(client).list(&params).await;
    (code(namespaces), code(secrets))
}

/// Waits until a token has these [`rights`].
async fn until_rights(tenant: &Tenant, token: &str, expected: (u16, u16)) {
    until(&format!("a token has the rights {expected:?}"), SOON, async || {
        // The API server may be replaced meanwhile.
        let asked = tokio::spawn({
            let (kubeconfig, token) = (tenant.kubeconfig.clone(), token.to_owned());
            async move { rights(&kubeconfig, &token).await }
        });
        match asked.await {
            Ok(found) if found == expected => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

pub(crate) async fn until_user(tenant: &Tenant, token: &str, expected: Result<&str, u16>) {
    until(&format!("a token is of {expected:?}"), SOON, async || {
        // The API server may be replaced meanwhile.
        let asked = tokio::spawn({
            let (kubeconfig, token) = (tenant.kubeconfig.clone(), token.to_owned());
            async move { token::user(&kubeconfig, &token).await }
        });
        match asked.await {
            Ok(user) if user.as_deref().map_err(|code| *code) == expected => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn until_accepted(host: &TestCluster, reason: &str) -> String {
    until(&format!("Accepted has the reason {reason}"), SOON, async || {
        let cluster: TenantCluster = host.tenants(NAME).get(NAME).await.map_err(|error| error.to_string())?;
        let is_current =
            cluster.status.as_ref().and_then(|status| status.observed_generation) == cluster.metadata.generation;
        let conditions = cluster.status.unwrap_or_default().conditions;
        let accepted = conditions.into_iter().find(|one| one.type_ == conditions::ACCEPTED);
        match accepted {
            Some(one) if one.reason == reason && is_current => Ok(one.message),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

pub(crate) async fn people_sign_in_with_tokens_of_issuers(host: Arc<TestCluster>) {
    let (a, b, unknown) = tokio::join!(Issuer::start(), Issuer::start(), Issuer::start());
    let class = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"authentication": {"allowedIssuers": [a.url, b.url]}},
    });
    apply(&host.client, "", &class).await.unwrap();
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let jwt = json!({"jwt": [authenticator(&a, "a:"), authenticator(&b, "")]});
    wanted.spec.authentication = Some(serde_json::from_value(jwt).unwrap());
    wanted.spec.access = serde_json::from_value(json!({
        "admins": [{"kind": "User", "name": "root"}],
        "viewers": [{"kind": "Group", "name": "a:staff"}],
    }))
    .unwrap();
    let tenant = Tenant::create(&host, NAME, &wanted).await;

    // The API server gets the keys of the issuers through the syncer.
    until_user(&tenant, &a.token("ada", &[]), Ok("a:ada")).await;
    until_user(&tenant, &b.token("root", &[]), Ok("root")).await;
    // An API server knows a role a moment after it was bound.
    until_rights(&tenant, &a.token("ada", &["staff"]), (200, 403)).await;
    until_rights(&tenant, &b.token("root", &[]), (200, 200)).await;
    assert_eq!(
        rights(&tenant.kubeconfig, &a.token("ada", &["others"])).await,
        (403, 403),
        "no role"
    );
    assert_eq!(
        rights(&tenant.kubeconfig, &a.token("root", &[])).await,
        (403, 403),
        "of another issuer"
    );
    refuse_others(&tenant, [&a, &b, &unknown]).await;

    // A ServiceAccount is for machines.
    let kubeconfig = machine_kubeconfig(&tenant).await;
    let machine = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    until_user(&tenant, machine, Ok("system:serviceaccount:default:default")).await;

    // The class does not allow a third issuer: nothing changes.
    let three = json!([
        authenticator(&a, "a:"),
        authenticator(&b, ""),
        authenticator(&unknown, "u:")
    ]);
    patch(&host, &json!({"authentication": {"jwt": three}})).await;
    let message = until_accepted(&host, "AuthenticationNotAllowed").await;
    assert!(message.contains(&unknown.url), "{message}");
    assert_eq!(
        token::user(&tenant.kubeconfig, &a.token("ada", &[])).await,
        Ok("a:ada".into())
    );

    remove_people_from_a_spec_that_is_not_accepted(&host, &tenant, [&a, &b]).await;
    tenant.delete(&host).await;
    let classes: Api<berth_api::TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// An issuer and a role that are gone take effect although there are not enough nodes for the rest of the spec, and still once it is accepted.
async fn remove_people_from_a_spec_that_is_not_accepted(host: &TestCluster, tenant: &Tenant, [a, b]: [&Issuer; 2]) {
    let groups = json!([{"name": "train", "poolName": "h100", "replicas": 100}]);
    patch(
        host,
        &json!({
            "authentication": {"jwt": [authenticator(b, "")]}, "access": {"admins": []}, "nodeGroups": groups,
        }),
    )
    .await;
    for (reason, node_groups) in [("NotEnoughNodes", groups), ("Valid", json!([]))] {
        patch(host, &json!({ "nodeGroups": node_groups })).await;
        until_accepted(host, reason).await;
        until_user(tenant, &a.token("ada", &["staff"]), Err(401)).await;
        until_user(tenant, &b.token("root", &[]), Ok("root")).await;
        until_rights(tenant, &b.token("root", &[]), (403, 403)).await;
    }
}

/// Tokens that authenticate nobody.
async fn refuse_others(tenant: &Tenant, [a, b, unknown]: [&Issuer; 3]) {
    let changed = |field: &str, value: Value| {
        let mut claims = a.claims("ada", &["staff"]);
        claims[field] = value;
        a.sign(&claims)
    };
    let signed_by_another = b.sign(&a.claims("ada", &["staff"]));
    let valid = a.token("ada", &["staff"]);
    let unsigned = format!("{}.", valid.rsplit_once('.').unwrap().0);
    for (what, token) in [
        ("expired", changed("exp", json!(1_700_000_000))),
        ("of another audience", changed("aud", json!("other"))),
        ("without an audience", changed("aud", Value::Null)),
        ("of another issuer", changed("iss", json!(unknown.url))),
        ("with a key of another issuer", signed_by_another),
        ("of an unknown issuer", unknown.token("ada", &["staff"])),
        ("without a signature", unsigned),
        ("in system:masters", b.token("eve", &["system:masters"])),
        (
            "in system:masters and another group",
            b.token("eve", &["staff", "system:masters"]),
        ),
        (
            "of the tenant's administrators",
            b.token("eve", &["berth:tenant-admins"]),
        ),
        ("of the API server", b.token("system:apiserver", &[])),
        ("of control", b.token("berth:control", &[])),
        ("of the syncer", b.token("berth:syncer", &[])),
        (
            "of a ServiceAccount",
            b.token("system:serviceaccount:kube-system:default", &[]),
        ),
    ] {
        assert_eq!(token::user(&tenant.kubeconfig, &token).await, Err(401), "{what}");
    }
}

/// The kubeconfig that `berth token service-account` prints for the default account.
async fn machine_kubeconfig(tenant: &Tenant) -> Value {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, &tenant.kubeconfig).unwrap();
    let output = Command::new(binary("berth"))
        .args(["token", "service-account", "default/default", "--ttl", "10m"])
        .env("KUBECONFIG", &file)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kubeconfig: Value = serde_saphyr::from_slice(&output.stdout).unwrap();
    assert!(kubeconfig["users"][0]["user"]["client-key-data"].is_null());
    kubeconfig
}

pub(crate) async fn schemas_reject_invalid_authentication(host: Arc<TestCluster>) {
    let issuer = json!({"url": "https://id.example.com", "audiences": ["berth"]});
    let username = json!({"claim": "sub", "prefix": "oidc:"});
    let valid = json!({"issuer": issuer, "claimMappings": {"username": username}});
    let tenant = |spec: &Value| {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "invalid", "namespace": "default"}, "spec": spec,
        })
    };
    let changed = |path: &str, value: Value| {
        let mut jwt = valid.clone();
        *jwt.pointer_mut(path).unwrap() = value;
        tenant(&json!({"authentication": {"jwt": [jwt]}}))
    };
    let with_kubeconfig =
        |kubeconfig: Value| tenant(&json!({"authentication": {"jwt": [valid], "kubeconfig": kubeconfig}}));
    let rejected = [
        (changed("/issuer/url", json!("http://id.example.com")), "issuer.url"),
        (
            changed("/issuer/url", json!("https://user@id.example.com")),
            "issuer.url",
        ),
        (changed("/issuer/url", json!("https://id.example.com?a")), "issuer.url"),
        (changed("/issuer/audiences", json!([])), "issuer.audiences"),
        (
            changed("/issuer/audiences", json!(["a", "b"])),
            "several audiences need audienceMatchPolicy",
        ),
        (
            changed("/claimMappings/username", json!({"claim": "sub"})),
            "claim needs a prefix",
        ),
        (
            changed("/claimMappings/username", json!({"claim": "sub", "prefix": "system:"})),
            "are reserved",
        ),
        (
            changed("/claimMappings/username", json!({})),
            "exactly one of claim and expression",
        ),
        (
            tenant(&json!({"authentication": {"jwt": [valid, valid]}})),
            "each issuer may be listed once",
        ),
        (
            with_kubeconfig(json!({"issuer": "https://other.example.com", "clientID": "berth"})),
            "kubeconfig must name an issuer of jwt",
        ),
        (
            with_kubeconfig(json!({"issuer": "https://id.example.com", "clientID": "other"})),
            "kubeconfig must name an issuer of jwt",
        ),
        (
            with_kubeconfig(
                json!({"issuer": "https://id.example.com", "clientID": "berth", "redirectURL": "http://10.0.0.1"}),
            ),
            "redirectURL",
        ),
        (
            tenant(&json!({"access": {"viewers": [{"kind": "Group", "name": "system:authenticated"}]}})),
            "are reserved",
        ),
        (
            tenant(&json!({"access": {"admins": [{"kind": "ServiceAccount", "name": "x"}]}})),
            "kind",
        ),
    ];
    for (object, expected) in rejected {
        expect_rejected(&host.client, "default", &object, expected).await;
    }
}

/// `berth token oidc` for an issuer, with its cache in a folder.
fn berth_token(issuer: &Issuer, folder: &Path, flow: &str) -> Command {
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, &issuer.ca_pem).unwrap();
    let mut command = Command::new(binary("berth"));
    command
        .args([
            "token",
            "oidc",
            "--client-id",
            CLIENT,
            "--flow",
            flow,
            "--issuer",
            &issuer.url,
        ])
        .arg("--ca-file")
        .arg(ca)
        .env("XDG_CACHE_HOME", folder)
        // No browser is opened.
        .env("PATH", "")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The token that a command prints, and nothing of it is in its messages.
async fn read_token(mut command: Command) -> String {
    let output = command.output().await.unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{messages}");
    let credential: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(credential["kind"], "ExecCredential");
    let token = credential["status"]["token"].as_str().unwrap().to_owned();
    assert!(
        !messages.contains(&token) && !messages.contains("refresh-"),
        "{messages}"
    );
    token
}

pub(crate) async fn berth_token_signs_in_once_and_refreshes(_host: Arc<TestCluster>) {
    let issuer = Issuer::start().await;
    let folder = TempDir::new().unwrap();
    let many = (0..5).map(|_| read_token(berth_token(&issuer, folder.path(), "device")));
    let tokens = futures::future::join_all(many).await;
    assert!(tokens.iter().all(|token| *token == tokens[0]));
    assert_eq!(
        issuer.counts(),
        Counts {
            devices: 1,
            refreshes: 0
        }
    );

    // A token that is about to expire is refreshed without the user, until the issuer refuses that.
    let folder = TempDir::new().unwrap();
    issuer.set_lifetime(30);
    let first = read_token(berth_token(&issuer, folder.path(), "device")).await;
    let second = read_token(berth_token(&issuer, folder.path(), "device")).await;
    assert_ne!(first, second);
    assert_eq!(
        issuer.counts(),
        Counts {
            devices: 2,
            refreshes: 1
        }
    );
    issuer.revoke_refresh_tokens();
    read_token(berth_token(&issuer, folder.path(), "device")).await;
    assert_eq!(
        issuer.counts(),
        Counts {
            devices: 3,
            refreshes: 1
        }
    );
}

pub(crate) async fn berth_token_signs_in_with_a_browser(_host: Arc<TestCluster>) {
    let issuer = Issuer::start().await;
    let folder = TempDir::new().unwrap();
    let mut command = berth_token(&issuer, folder.path(), "browser");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let page = loop {
        let line = lines.next_line().await.unwrap().expect("it prints a page");
        if line.starts_with(&issuer.url) {
            break line;
        }
    };
    let back: http::Uri = issuer.authorize(&page).parse().unwrap();
    let (host, port) = (back.host().unwrap(), back.port_u16().unwrap());
    let at = back.path_and_query().unwrap().as_str();
    // A request without the state of this sign-in is not the browser's.
    let forged = berth_runtime::http::get(host, port, "/callback?code=x&state=y", SOON)
        .await
        .unwrap();
    assert_eq!(forged.0.as_u16(), 404);
    let answer = berth_runtime::http::get(host, port, at, SOON).await.unwrap();
    assert!(answer.1.contains("You are signed in"), "{}", answer.1);
    let output = process.wait_with_output().await.unwrap();
    let credential: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        credential["status"]["token"]
            .as_str()
            .is_some_and(|token| token.split('.').count() == 3)
    );
}
