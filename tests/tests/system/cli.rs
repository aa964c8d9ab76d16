//! `berth` from the creation of a tenant to its deletion, as a team and the platform use it.

use berth_process::binaries::{self, Binary};
use berth_tests::{
    canaries::texts_in, command_line::CommandLine, files::binary, objects::apply, tenant::ensure_namespace,
    test_cluster::TestCluster,
};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// Namespace of the tenant.
const TEAM: &str = "team-cli";
/// A user who may read the TenantClusters of the namespace and nothing else.
const MEMBER: &str = "cli-member";
/// What must not be in a bundle.
const CANARY: &str = "CANARYq7Zx19KdAA";

pub async fn a_tenant_is_created_used_and_deleted_by_the_command_line(host: Arc<TestCluster>) {
    let user = CommandLine::of_administrator(&host);
    ensure_namespace(&host.client, TEAM).await;
    create(&user).await;
    look(&user).await;
    connect(&user).await;
    a_signal_ends_the_command_and_removes_its_kubeconfig(&user).await;
    kubectl_runs_it_and_completes_names(&user).await;
    a_member_of_the_team_sees_what_it_may(&host, &user).await;
    bundle(&host, &user).await;

    // Nothing answers the question.
    let (out, err) = user.run(&["delete", "vision", "-n", TEAM, "-i"], 0).await;
    assert!(
        out.contains("deletion is cancelled") && err.contains("team-cli/vision (Ready, 1 node)"),
        "{out}{err}"
    );
    let (out, _) = user.run(&["delete", "vision", "-n", TEAM, "--timeout", "10m"], 0).await;
    assert!(out.contains("is deleted with everything"), "{out}");
    assert!(host.tenants(TEAM).get_opt("vision").await.unwrap().is_none());
    let (_, err) = user.run(&["delete", "vision", "-n", TEAM], 3).await;
    assert!(err.contains("there is no TenantCluster team-cli/vision"), "{err}");
    let none = ["vision", "-n", TEAM, "--ignore-not-found"];
    user.run(&[&["delete"][..], &none].concat(), 0).await;
    let (out, _) = user.run(&[&["get"][..], &none].concat(), 0).await;
    assert_eq!(out, "");
    user.run(&["get", "vision", "-n", TEAM], 3).await;
}

async fn create(user: &CommandLine) {
    // Nothing is created by a dry run, and the server checks it.
    let dry = ["create", "vision", "-n", TEAM, "--nodes", "l40s=1"];
    let (out, _) = user
        .run(&[&dry[..], &["--dry-run=client", "-o", "yaml"]].concat(), 0)
        .await;
    assert!(out.contains("poolName: l40s"), "{out}");
    let file = user.folder().join("tenant.yaml");
    let wrong =
        "apiVersion: berth.dev/v1alpha1\nkind: TenantCluster\nmetadata: {name: vision}\nspec: {flavour: vanilla}\n";
    fs::write(&file, wrong).unwrap();
    let file = file.display().to_string();
    let (_, err) = user
        .run(&["create", "-f", &file, "-n", TEAM, "--dry-run=server"], 1)
        .await;
    assert!(err.contains("flavour"), "{err}");
    user.run(&["get", "vision", "-n", TEAM], 3).await;

    let wait = ["--wait", "--timeout", "10m", "-o", "name"];
    let (out, err) = user.run(&[&dry[..], &wait].concat(), 0).await;
    assert_eq!(out, "tenantcluster.berth.dev/vision\n");
    assert!(err.contains("· ControlPlaneReady is True"), "{err}");
    assert!(err.contains("berth connect team-cli/vision"), "{err}");
}

async fn look(user: &CommandLine) {
    let (out, _) = user.run(&["version"], 0).await;
    assert!(out.contains("\nhost kubernetes v"), "{out}");
    let (out, _) = user.run(&["list", "-n", TEAM], 0).await;
    let line = out.lines().nth(1).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[..3], [TEAM, "vision", "True"], "{out}");
    // Nodes assigned and desired, and GPUs: an L40S node has four.
    assert_eq!(cells[5..8], ["1", "1", "4"], "{out}");
    let (rows, _) = user.run(&["list", "-n", TEAM, "--no-headers"], 0).await;
    assert!(rows.starts_with(TEAM) && rows.lines().count() == 1, "{rows}");
    let (out, _) = user.run(&["ls", "-A", "-o", "json"], 0).await;
    let list: Value = serde_json::from_str(&out).unwrap();
    let items = list["items"].as_array().unwrap();
    assert!(items.iter().any(|item| item["metadata"]["name"] == "vision"), "{out}");
    let (out, _) = user.run(&["get", "team-cli/vision"], 0).await;
    assert!(out.contains("Phase:     Ready") && out.contains("NodesReady"), "{out}");
    let (out, _) = user.run(&["nodes", "team-cli/vision"], 0).await;
    assert!(out.contains("Assigned") && out.contains("team-cli/vision"), "{out}");

    // Other tests may have classes and webhooks of their own, which are not judged here.
    let Output { status, stdout, .. } = user.berth(&["doctor", "-o", "json"]).await;
    let out = String::from_utf8(stdout).unwrap();
    let report: Value = serde_json::from_str(&out).unwrap();
    let expected = i32::from(report["problems"].as_u64() > Some(0));
    assert_eq!(status.code(), Some(expected), "{out}");
    let levels = |check: &str| -> Vec<&str> {
        let checks = report["checks"].as_array().unwrap().iter();
        let own = checks.filter(|result| result["check"] == check);
        own.map(|result| result["level"].as_str().unwrap()).collect()
    };
    for check in [
        "host version",
        "definitions",
        "permissions",
        "admission policies",
        "control",
        "certificates",
        "clock",
    ] {
        assert_eq!(levels(check), ["ok"], "{check}: {out}");
    }
    // There is no network plugin, because nodes are simulated.
    assert_eq!(levels("network"), ["warning"], "{out}");
}

async fn connect(user: &CommandLine) {
    let before = user.document();
    let kubectl = binaries::find_pinned(Binary::Kubectl).unwrap().display().to_string();
    let (out, err) = user
        .run(
            &["connect", "team-cli/vision", "--", &kubectl, "get", "ns", "-o", "name"],
            0,
        )
        .await;
    assert!(out.contains("namespace/kube-system") && !out.contains(TEAM), "{out}");
    assert!(err.contains("is reached at its address"), "{err}");
    // The exit status is that of the command, and the kubeconfig of the user is as it was.
    user.run(&["connect", "team-cli/vision", "--", "sh", "-c", "exit 7"], 7)
        .await;
    assert_eq!(user.document(), before);

    user.run(&["connect", "vision", "-n", TEAM], 0).await;
    assert_eq!(user.document()["current-context"], "berth/team-cli/vision");
    let mode = fs::metadata(user.config()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let output = Command::new(&kubectl)
        .args(["get", "ns", "-o", "name"])
        .env("KUBECONFIG", user.config())
        .env("KUBECACHEDIR", user.folder())
        .output()
        .await
        .unwrap();
    let namespaces = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(namespaces.contains("namespace/kube-system"), "{output:?}");
    assert!(!namespaces.contains(TEAM), "{namespaces}");
    // Other commands still talk to the host.
    user.run(&["get", "vision", "-n", TEAM], 0).await;
    let (out, _) = user.run(&["disconnect"], 0).await;
    assert!(out.contains("berth/team-cli/vision is removed"), "{out}");
    assert_eq!(user.document(), before);

    let file = user.folder().join("vision.kubeconfig");
    let path = file.display().to_string();
    user.run(&["kubeconfig", "vision", "-n", TEAM, "--output-file", &path], 0)
        .await;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (out, _) = user.run(&["kubeconfig", "vision", "-n", TEAM], 0).await;
    assert_eq!(out, fs::read_to_string(&file).unwrap());
}

/// berth with the kubeconfig of its user, under another name of the program.
fn command(user: &CommandLine, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("KUBECONFIG", user.config())
        .env("KUBECACHEDIR", user.folder())
        .env("BERTH_HOME", user.folder().join("none"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn a_signal_ends_the_command_and_removes_its_kubeconfig(user: &CommandLine) {
    let script = "echo $KUBECONFIG; exec sleep 600";
    let mut child = command(user, &binary("berth"))
        .args(["connect", "team-cli/vision", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let kubeconfig = lines.next_line().await.unwrap().unwrap();
    assert_eq!(fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    // 128 and the number of the signal, which the command got, too.
    assert_eq!(child.wait().await.unwrap().code(), Some(143));
    assert!(!Path::new(&kubeconfig).exists());
}

async fn kubectl_runs_it_and_completes_names(user: &CommandLine) {
    let folder = user.folder().join("plugins");
    fs::create_dir(&folder).unwrap();
    for name in ["kubectl-berth", "kubectl_complete-berth"] {
        symlink(binary("berth"), folder.join(name)).unwrap();
    }
    let kubectl = binaries::find_pinned(Binary::Kubectl).unwrap();
    let run = async |program: &Path, arguments: &[&str]| {
        let mut command = command(user, program);
        let output = command.args(arguments).env("PATH", &folder).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = run(&kubectl, &["berth", "list", "-n", TEAM, "-o", "name"]).await;
    assert_eq!(listed, "tenantcluster.berth.dev/vision\n");
    let help = run(&kubectl, &["berth", "get", "--help"]).await;
    assert!(help.contains("Usage: kubectl berth get"), "{help}");
    let completer = folder.join("kubectl_complete-berth");
    let names = run(&completer, &["-n", TEAM, "get", "vi"]).await;
    assert_eq!(names, "vision\tReady\n:4\n");
    let elsewhere = run(&completer, &["get", "team-c"]).await;
    assert_eq!(elsewhere, "team-cli/vision\tReady\n:4\n");
}

async fn a_member_of_the_team_sees_what_it_may(host: &TestCluster, user: &CommandLine) {
    let rbac = "rbac.authorization.k8s.io";
    for object in [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": {"name": "readers"}, "rules": [
            {"apiGroups": ["berth.dev"], "resources": ["tenantclusters"], "verbs": ["get", "list"]}]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": {"name": "readers"},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "readers"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": MEMBER}]}),
    ] {
        apply(&host.client, TEAM, &object).await.unwrap();
    }
    let file = user.folder().join("member.kubeconfig");
    fs::write(&file, host.kubeconfig_for(MEMBER, &[]).unwrap()).unwrap();
    let file = file.display().to_string();
    let run = async |arguments: &[&str], status: i32| {
        let own = ["--kubeconfig", &file, "-n", TEAM];
        user.run(&[&own[..], arguments].concat(), status).await
    };
    let (out, _) = run(&["get", "vision"], 0).await;
    assert!(out.contains("Phase:     Ready"), "{out}");
    let (out, _) = run(&["explain", "tenant", "vision"], 0).await;
    assert!(out.contains("\nNot shown: cannot list the nodes"), "{out}");
    let (out, _) = run(&["explain", "tenant", "vision", "-o", "name"], 0).await;
    assert_eq!(out, "tenantcluster.berth.dev/vision\n");
    let (out, _) = run(&["explain", "pod", "vision", "default/train"], 0).await;
    assert!(
        out.contains("On the host: could not be read") && out.contains("In the tenant: could not be read"),
        "{out}"
    );
    for denied in [
        &["list", "-A"][..],
        &["kubeconfig", "vision"],
        &["delete", "vision"],
        &["debug", "bundle"],
    ] {
        let (_, err) = run(denied, 1).await;
        assert!(
            err.contains("ask the platform for this permission"),
            "{denied:?}: {err}"
        );
    }
    // What it may not read is not ok.
    let (out, _) = run(&["doctor", "-o", "json"], 0).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    for result in report["checks"].as_array().unwrap() {
        let is_public = result["check"] == "host version" || result["check"] == "clock";
        assert_eq!(result["level"] == "ok", is_public, "{result}");
    }
}

async fn bundle(host: &TestCluster, user: &CommandLine) {
    let tenants = host.tenants(TEAM);
    let annotated = json!({"metadata": {"annotations": {"example.com/note": format!("password={CANARY}")}}});
    let patch = Patch::Merge(annotated);
    tenants.patch("vision", &PatchParams::default(), &patch).await.unwrap();
    let event: Event = serde_json::from_value(json!({
        "metadata": {"generateName": "canary-", "namespace": TEAM}, "reason": "Canary", "type": "Normal",
        "involvedObject": {"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "name": "vision", "namespace": TEAM},
        "message": format!("Authorization: Bearer {CANARY}"),
    }))
    .unwrap();
    let events: Api<Event> = Api::namespaced(host.client.clone(), TEAM);
    events.create(&PostParams::default(), &event).await.unwrap();

    let root = unpacked_bundle(user, "team-cli/vision").await;
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (objects, events) = (
        read("objects/tenantclusters.yaml"),
        read("namespaces/team-cli/events.yaml"),
    );
    assert!(
        objects.contains("name: vision") && objects.contains("[removed]"),
        "{objects}"
    );
    assert!(events.contains("Canary"), "{events}");
    assert!(read("versions.yaml").contains(env!("CARGO_PKG_VERSION")));
    let secret = user.run(&["kubeconfig", "vision", "-n", TEAM], 0).await.0;
    let secret: Value = serde_saphyr::from_str(&secret).unwrap();
    let key = secret["users"][0]["user"]["client-key-data"].as_str().unwrap();
    for (path, text) in texts_in(&root) {
        for canary in [CANARY, key, "-----BEGIN"] {
            assert!(!text.contains(canary), "{canary} is in {path}:\n{text}");
        }
    }
}

/// The folder with what `berth debug bundle` collects about a tenant.
pub(crate) async fn unpacked_bundle(user: &CommandLine, tenant: &str) -> PathBuf {
    let file = user.folder().join("bundle.tar.gz");
    let path = file.display().to_string();
    user.run(&["debug", "bundle", tenant, "--output-file", &path], 0).await;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let target = user.folder().join("bundle");
    fs::create_dir(&target).unwrap();
    let unpacked = Command::new("tar")
        .args(["-xzf", &path, "-C", &target.display().to_string()])
        .status()
        .await
        .unwrap();
    assert!(unpacked.success());
    target.join("berth-debug")
}
