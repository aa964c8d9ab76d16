//! A person who may get a TenantCluster and nothing else signs in to the tenant with a kubeconfig that holds no secret.

use super::sign_in::authenticator;
use berth_process::binaries::{self, Binary};
use berth_tests::{
    canaries::texts_in,
    command_line::CommandLine,
    files::binary,
    issuer::{CLIENT, Counts, Issuer, SUBJECT},
    objects::apply,
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
};
use tempfile::TempDir;
use tokio::process::Command;

/// Namespace, and name of the class and of the tenant.
const NAME: &str = "sign-in-kubeconfig";
/// A user of the host who may get the TenantClusters of the namespace and nothing else.
const MEMBER: &str = "sign-in-member";
const TENANT: &str = "sign-in-kubeconfig/sign-in-kubeconfig";

pub(crate) async fn a_kubeconfig_without_a_secret_signs_in_who_may_only_get_the_tenant(host: Arc<TestCluster>) {
    let issuer = Issuer::start().await;
    let tenant = create(&host, &issuer).await;
    let member = CommandLine::of_user(&host, MEMBER);

    let file = member.folder().join("vision.kubeconfig");
    let path = file.display().to_string();
    let (_, err) = member.run(&["kubeconfig", TENANT, "--output-file", &path], 0).await;
    assert!(err.contains("holds no secret") && err.contains(&issuer.url), "{err}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    has_no_secret(&fs::read_to_string(&file).unwrap());
    let (out, _) = member.run(&["kubeconfig", TENANT], 0).await;
    assert_eq!(out, fs::read_to_string(&file).unwrap());

    let person = Person::new(&member);
    let expected = format!("people:{SUBJECT}");
    until("the person is signed in", SOON, async || {
        // The API server may not have the keys of the issuer yet.
        let output = person.kubectl(&file, &WHO_AM_I).await;
        match String::from_utf8_lossy(&output.stdout) {
            user if user == expected => Ok(()),
            _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    })
    .await;
    // As a viewer, who signed in once.
    person.until_may_list_namespaces(&file).await;
    let denied = person.kubectl(&file, &["get", "secrets", "-A"]).await;
    assert!(
        String::from_utf8_lossy(&denied.stderr).contains(&format!("User \"{expected}\" cannot list")),
        "{denied:?}"
    );
    let once = Counts {
        devices: 1,
        refreshes: 0,
    };
    assert_eq!(issuer.counts(), once);

    connects(&member, &person, &issuer).await;
    assert_eq!(issuer.counts(), once);

    administrators_are_asked_for(&host, &member, &issuer).await;
    tenant.delete(&host).await;
    let classes: Api<berth_api::TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}

const WHO_AM_I: [&str; 4] = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];

/// A tenant whose kubeconfigs name the issuer, and a user of the host who may get it.
async fn create(host: &TestCluster, issuer: &Issuer) -> Tenant {
    ensure_namespace(&host.client, NAME).await;
    get_only(host, NAME, MEMBER).await;
    let class = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"authentication": {"allowedIssuers": [issuer.url]}},
    });
    apply(&host.client, "", &class).await.unwrap();
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let authentication = json!({
        "jwt": [authenticator(issuer, "people:")],
        "kubeconfig": {"issuer": issuer.url, "clientID": CLIENT, "scopes": ["groups"]},
    });
    wanted.spec.authentication = Some(serde_json::from_value(authentication).unwrap());
    let access = json!({"viewers": [{"kind": "User", "name": format!("people:{SUBJECT}")}]});
    wanted.spec.access = serde_json::from_value(access).unwrap();
    Tenant::create(host, NAME, &wanted).await
}

/// Lets a user of the host get the TenantClusters of a namespace, and do nothing else.
pub(crate) async fn get_only(host: &TestCluster, namespace: &str, user: &str) {
    let rbac = "rbac.authorization.k8s.io";
    for object in [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": {"name": "member"}, "rules": [
            {"apiGroups": ["berth.dev"], "resources": ["tenantclusters"], "verbs": ["get"]}]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": {"name": "member"},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "member"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}]}),
    ] {
        apply(&host.client, namespace, &object).await.unwrap();
    }
}

/// The user of a kubeconfig runs `berth`, and there is nothing else of it.
pub(crate) fn has_no_secret(text: &str) {
    let kubeconfig: Value = serde_saphyr::from_str(text).unwrap();
    let users = kubeconfig["users"].as_array().unwrap();
    assert_eq!(users.len(), 1, "{text}");
    let user = users[0]["user"].as_object().unwrap();
    assert_eq!(user.keys().collect::<Vec<_>>(), ["exec"], "{text}");
    assert_eq!(user["exec"]["command"], "berth");
    let arguments = user["exec"]["args"].as_array().unwrap();
    assert_eq!(arguments[..2], ["token", "oidc"], "{text}");
    assert!(
        arguments
            .iter()
            .all(|one| !one.as_str().unwrap().starts_with("--client-secret")),
        "{text}"
    );
    let cluster = kubeconfig["clusters"][0]["cluster"].as_object().unwrap();
    assert_eq!(
        cluster.keys().collect::<Vec<_>>(),
        ["certificate-authority-data", "server"],
        "{text}"
    );
}

/// A person at a terminal, with `berth` in the PATH and nothing else there.
pub(crate) struct Person {
    kubectl: PathBuf,
    cache: PathBuf,
    display: Option<&'static str>,
}

impl Person {
    /// Without a display.
    pub(crate) fn new(member: &CommandLine) -> Self {
        Self::with_cache(member.folder().join("cache"))
    }

    /// The same on a machine where nobody has signed in.
    pub(crate) fn on_another_machine(member: &CommandLine) -> Self {
        let cache = TempDir::with_prefix_in("cache-", member.folder()).unwrap();
        Self::with_cache(cache.keep())
    }

    /// On another machine, which has a display. There is no program that opens a page.
    pub(crate) fn at_a_display(member: &CommandLine) -> Self {
        Self {
            display: Some(":0"),
            ..Self::on_another_machine(member)
        }
    }

    fn with_cache(cache: PathBuf) -> Self {
        Self {
            kubectl: binaries::find_pinned(Binary::Kubectl).unwrap(),
            cache,
            display: None,
        }
    }

    /// The token that is kept after the only sign-in.
    pub(crate) fn kept_token(&self) -> String {
        let kept = texts_in(&self.cache.join("berth/tokens"));
        // Beside it there is the file that is locked.
        let is_json = |path: &str| Path::new(path).extension().is_some_and(|extension| extension == "json");
        let mut tokens = kept.iter().filter(|(path, _)| is_json(path));
        let (Some((_, text)), None) = (tokens.next(), tokens.next()) else {
            panic!("there is not one file with tokens")
        };
        let tokens: Value = serde_json::from_str(text).unwrap();
        tokens["idToken"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn kubectl(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        self.command(kubeconfig, arguments).output().await.unwrap()
    }

    /// Waits until the person may list namespaces: an API server knows a role a moment after it was bound.
    pub(crate) async fn until_may_list_namespaces(&self, kubeconfig: &Path) {
        until("a role is known", SOON, async || {
            let output = self.kubectl(kubeconfig, &["get", "namespaces", "-o", "name"]).await;
            let is_there = String::from_utf8_lossy(&output.stdout).contains("namespace/kube-system");
            if is_there { Ok(()) } else { Err(output) }
        })
        .await;
    }

    /// A command of kubectl that has not run yet.
    pub(crate) fn command(&self, kubeconfig: &Path, arguments: &[&str]) -> Command {
        let mut command = self.program(&self.kubectl);
        command.env("KUBECONFIG", kubeconfig).args(arguments);
        command
    }

    /// A command of `berth` that has no arguments yet.
    pub(crate) fn berth(&self) -> Command {
        self.program(&binary("berth"))
    }

    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("KUBECACHEDIR", self.cache.join("kube"))
            .env("XDG_CACHE_HOME", &self.cache)
            .env("PATH", binary("berth").parent().unwrap())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"] {
            command.env_remove(name);
        }
        if let Some(display) = self.display {
            command.env("DISPLAY", display);
        }
        command
    }
}

/// `berth connect` finds the way without a sign-in, and adds the same user.
async fn connects(member: &CommandLine, person: &Person, issuer: &Issuer) {
    let before = member.document();
    let kubectl = person.kubectl.display().to_string();
    let command = ["connect", TENANT, "--", &kubectl];
    let output = person
        .berth()
        .args([&command[..], &WHO_AM_I].concat())
        .env("KUBECONFIG", member.config())
        .output()
        .await
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("people:{SUBJECT}"),
        "{output:?}"
    );
    assert_eq!(member.document(), before);

    let (_, err) = member.run(&["connect", TENANT], 0).await;
    assert!(
        err.contains(&format!("kubectl signs you in at {}", issuer.url)) && !err.contains("which has keys"),
        "{err}"
    );
    let after = member.document();
    let context = format!("berth/{TENANT}");
    assert_eq!(after["current-context"], json!(context));
    let users = after["users"].as_array().unwrap();
    let own = users.iter().find(|user| user["name"] == json!(context)).unwrap();
    assert_eq!(own["user"].as_object().unwrap().keys().collect::<Vec<_>>(), ["exec"]);
    let output = person.kubectl(&member.config(), &WHO_AM_I).await;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("people:{SUBJECT}"),
        "{output:?}"
    );
    member.run(&["disconnect"], 0).await;
    assert_eq!(member.document(), before);
}

/// The certificate of the administrators is for those who ask for it and may read the Secret, or if kubeconfigs name no issuer.
async fn administrators_are_asked_for(host: &TestCluster, member: &CommandLine, issuer: &Issuer) {
    for command in [&["kubeconfig", TENANT, "--admin"][..], &["connect", TENANT, "--admin"]] {
        let (_, err) = member.run(command, 1).await;
        assert!(
            err.contains("which you may not read") && err.contains(&format!("sign in at {}", issuer.url)),
            "{err}"
        );
    }
    let administrator = CommandLine::of_administrator(host);
    let has_key = |text: &str| {
        let kubeconfig: Value = serde_saphyr::from_str(text).unwrap();
        !kubeconfig["users"][0]["user"]["client-key-data"].is_null()
    };
    let (out, _) = administrator.run(&["kubeconfig", TENANT, "--admin"], 0).await;
    assert!(has_key(&out));
    let (out, _) = administrator.run(&["kubeconfig", TENANT], 0).await;
    has_no_secret(&out);

    // Without an issuer for kubeconfigs there is only that of the administrators.
    let tenants = host.tenants(NAME);
    host.patch_tenant(NAME, NAME, &json!({"authentication": {"kubeconfig": null}}))
        .await;
    until("nothing is published for people", SOON, async || {
        let cluster = tenants.get(NAME).await.map_err(|error| error.to_string())?;
        match cluster.status.unwrap_or_default().kubeconfig {
            None => Ok(()),
            Some(published) => Err(format!("{published:?}")),
        }
    })
    .await;
    let (out, _) = administrator.run(&["kubeconfig", TENANT], 0).await;
    assert!(has_key(&out));
    let (_, err) = member.run(&["kubeconfig", TENANT], 1).await;
    assert!(
        err.contains("ask the platform for this permission") && err.contains("spec.authentication.kubeconfig"),
        "{err}"
    );
}
