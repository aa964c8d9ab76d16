//! People sign in to a tenant at Dex, with the configuration that the documentation shows for both.

use super::sign_in::until_user;
use super::sign_in_kubeconfig::{Person, get_only, has_no_secret};
use berth_tests::{
    command_line::CommandLine,
    dex::{CLIENT, Dex, End, GROUP, OF_CONNECTOR, OTHER_CLIENT, WITH_PASSWORD, documented},
    objects::apply,
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    token,
    wait::{SOON, until},
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Stdio, sync::Arc};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

/// Namespace, and name of the class and of the tenant.
const NAME: &str = "sign-in-dex";
/// A user of the host who may get the TenantClusters of the namespace and nothing else.
const MEMBER: &str = "sign-in-dex-member";
const TENANT: &str = "sign-in-dex/sign-in-dex";
/// How long tokens are valid.
const LIFETIME: &str = "20s";

/// What a command has written, and how often its person was asked to sign in.
struct Ended {
    is_success: bool,
    stdout: String,
    stderr: String,
    asked: u32,
}

/// Runs a command. If it asks its person to sign in, the person does so at Dex, as `name`.
async fn run(mut command: Command, dex: &Dex, name: &str) -> Ended {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let (mut stderr, mut asked) = (String::new(), 0);
    while let Some(line) = lines.next_line().await.unwrap() {
        // With a code, or in a browser.
        let page = line.strip_prefix("Open ").unwrap_or(&line);
        if page.starts_with(&dex.url) {
            asked += 1;
            match dex.sign_in(page, name).await {
                End::Page(text) => assert!(text.contains("Login Successful"), "{text}"),
                End::Elsewhere(url) => browser_returns(&url).await,
            }
        }
        stderr.push_str(&line);
        stderr.push('\n');
    }
    let output = process.wait_with_output().await.unwrap();
    Ended {
        is_success: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr,
        asked,
    }
}

async fn browser_returns(url: &str) {
    let url: http::Uri = url.parse().unwrap();
    assert_eq!((url.host(), url.path()), (Some("localhost"), "/callback"));
    let path = url.path_and_query().unwrap().as_str();
    let (status, text) = berth_runtime::http::get("localhost", url.port_u16().unwrap(), path, SOON)
        .await
        .unwrap();
    assert!(
        status.is_success() && text.contains("You are signed in"),
        "{status}: {text}"
    );
}

/// The user of a kubeconfig by the tenant's API server, its groups that Dex names, and how often the person was asked to sign in.
async fn who_am_i(
    person: &Person,
    kubeconfig: &Path,
    dex: &Dex,
    name: &str,
) -> Result<(String, Vec<String>, u32), Ended> {
    let ended = run(person.command(kubeconfig, &["auth", "whoami", "-o", "json"]), dex, name).await;
    if !ended.is_success {
        return Err(ended);
    }
    let review: Value = serde_json::from_str(&ended.stdout).unwrap();
    let user = &review["status"]["userInfo"];
    let groups = user["groups"].as_array().unwrap().iter();
    let groups = groups.filter_map(|group| group.as_str().unwrap().strip_prefix("dex:"));
    Ok((
        user["username"].as_str().unwrap().to_owned(),
        groups.map(ToOwned::to_owned).collect(),
        ended.asked,
    ))
}

/// The same, of a person who is known to the API server.
async fn known(person: &Person, kubeconfig: &Path, dex: &Dex, name: &str) -> (String, Vec<String>, u32) {
    let asked = who_am_i(person, kubeconfig, dex, name).await;
    asked.unwrap_or_else(|ended| panic!("{}{}", ended.stdout, ended.stderr))
}

pub(crate) async fn people_sign_in_at_dex_in_both_flows(host: Arc<TestCluster>) {
    let (dex, unknown) = tokio::join!(Dex::start(LIFETIME), Dex::start("1h"));
    let tenant = create(&host, &dex).await;
    let member = CommandLine::of_user(&host, MEMBER);
    let file = member.folder().join("vision.kubeconfig");
    member
        .run(&["kubeconfig", TENANT, "--output-file", &file.display().to_string()], 0)
        .await;
    has_no_secret(&fs::read_to_string(&file).unwrap());

    // With a code, on a machine without a display. The API server may not have the keys of Dex yet.
    let person = Person::new(&member);
    let mut all_asked = 0;
    let (user, groups) = until("the API server knows the user", SOON, async || {
        match who_am_i(&person, &file, &dex, OF_CONNECTOR).await {
            Ok((user, groups, asked)) => {
                all_asked += asked;
                Ok((user, groups))
            }
            Err(ended) => {
                all_asked += ended.asked;
                Err(ended.stderr)
            }
        }
    })
    .await;
    assert_eq!((user, groups), (format!("dex:{OF_CONNECTOR}"), vec![GROUP.to_owned()]));
    assert_eq!(all_asked, 1);
    person.until_may_list_namespaces(&file).await;
    may_not_list(&person, &file, "secrets", OF_CONNECTOR).await;

    // A token that has expired is refused, and the person gets another one without being asked.
    let first = person.kept_token();
    until_user(&tenant, &first, Err(401)).await;
    let (user, groups, asked) = known(&person, &file, &dex, OF_CONNECTOR).await;
    assert_eq!(
        (user, groups, asked),
        (format!("dex:{OF_CONNECTOR}"), vec![GROUP.to_owned()], 0)
    );
    let second = person.kept_token();
    assert_ne!(first, second);

    // In a browser, where there is a display.
    let other = Person::at_a_display(&member);
    let (user, groups, asked) = known(&other, &file, &dex, WITH_PASSWORD).await;
    assert_eq!((user, groups, asked), (format!("dex:{WITH_PASSWORD}"), vec![], 1));
    may_not_list(&other, &file, "namespaces", WITH_PASSWORD).await;

    refuses_tokens_of_others(&tenant, &member, &dex, &unknown).await;

    // Dex keeps one refresh token for each person and client.
    let elsewhere = Person::on_another_machine(&member);
    let (_, _, asked) = known(&elsewhere, &file, &dex, OF_CONNECTOR).await;
    assert_eq!(asked, 1);
    let (user, _, asked) = known(&person, &file, &dex, OF_CONNECTOR).await;
    assert_eq!((user, asked), (format!("dex:{OF_CONNECTOR}"), 1));

    tenant.delete(&host).await;
    let classes: Api<berth_api::TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// The tenant of the documentation, in which the group of Dex may view, and a user of the host who may get it.
async fn create(host: &TestCluster, dex: &Dex) -> Tenant {
    ensure_namespace(&host.client, NAME).await;
    get_only(host, NAME, MEMBER).await;
    let class = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"authentication": {"allowedIssuers": [dex.url]}},
    });
    apply(&host.client, "", &class).await.unwrap();
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let mut authentication = documented("redirectURL:")["spec"]["authentication"].take();
    authentication["jwt"][0]["issuer"]["url"] = json!(dex.url);
    authentication["jwt"][0]["issuer"]["certificateAuthority"] = json!(dex.ca_pem);
    authentication["kubeconfig"]["issuer"] = json!(dex.url);
    wanted.spec.authentication = Some(serde_json::from_value(authentication).unwrap());
    let access = json!({"viewers": [{"kind": "Group", "name": format!("dex:{GROUP}")}]});
    wanted.spec.access = serde_json::from_value(access).unwrap();
    Tenant::create(host, NAME, &wanted).await
}

/// The person may not list a kind of objects.
async fn may_not_list(person: &Person, kubeconfig: &Path, resource: &str, name: &str) {
    let output = person.kubectl(kubeconfig, &["get", resource, "-A"]).await;
    let denied = format!("User \"dex:{name}\" cannot list resource \"{resource}\"");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&denied), "{output:?}");
}

/// The API server accepts tokens that Dex signs for the client of the tenant, and no others.
async fn refuses_tokens_of_others(tenant: &Tenant, member: &CommandLine, dex: &Dex, unknown: &Dex) {
    for (what, issuer, client, expected) in [
        (
            "of the tenant's client",
            dex,
            CLIENT,
            Ok(format!("dex:{WITH_PASSWORD}")),
        ),
        ("of another client", dex, OTHER_CLIENT, Err(401)),
        ("of another Dex", unknown, CLIENT, Err(401)),
    ] {
        let person = Person::on_another_machine(member);
        let ca = member.folder().join("dex-ca.pem");
        fs::write(&ca, &issuer.ca_pem).unwrap();
        let mut command = person.berth();
        command
            .args([
                "token",
                "oidc",
                "--flow=browser",
                "--redirect-url=http://localhost/callback",
            ])
            .args([
                "--scope=email",
                "--issuer",
                &issuer.url,
                "--client-id",
                client,
                "--ca-file",
            ])
            .arg(&ca);
        let ended = run(command, issuer, WITH_PASSWORD).await;
        assert_eq!((ended.is_success, ended.asked), (true, 1), "{what}: {}", ended.stderr);
        let credential: Value = serde_json::from_str(&ended.stdout).unwrap();
        let token = credential["status"]["token"].as_str().unwrap();
        assert_eq!(token::user(&tenant.kubeconfig, token).await, expected, "{what}");
    }
}
