//! Tokens, codes and secrets that `berth token` handles are in no message, argument or environment, and in no file that others may read.

use berth_process::binaries::{self, Binary};
use berth_tests::{
    canaries::{Canaries, texts_in},
    command_line::CommandLine,
    files::binary,
    issuer::{CLIENT, Issuer},
    test_cluster::TestCluster,
    wait::SOON,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Output, Stdio},
    sync::Arc,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};

/// Secret of the client at the issuer. In a form it is written in another way.
const CLIENT_SECRET: &str = "CANARY-client/secret+8c1f";
/// A code that the issuer has not given.
const FORGED_CODE: &str = "CANARY-forged-code-51ab";

/// A user of `berth token` whose files anybody may read by default, and who asks for every message.
struct User<'a> {
    issuer: &'a Issuer,
    folder: TempDir,
}

/// A command that runs, and what it has written to stderr.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    messages: String,
}

impl Running {
    /// The next line that begins so.
    async fn line(&mut self, begin: &str) -> String {
        loop {
            let line = self.lines.next_line().await.unwrap();
            let line = line.unwrap_or_else(|| panic!("no line begins with {begin:?}: {}", self.messages));
            self.messages.push_str(&line);
            self.messages.push('\n');
            if line.starts_with(begin) {
                return line;
            }
        }
    }

    /// Whether it succeeded, what it printed, and its messages.
    async fn end(mut self) -> (bool, String, String) {
        while let Some(line) = self.lines.next_line().await.unwrap() {
            self.messages.push_str(&line);
            self.messages.push('\n');
        }
        let Output { status, stdout, .. } = self.child.wait_with_output().await.unwrap();
        (status.success(), String::from_utf8(stdout).unwrap(), self.messages)
    }
}

impl<'a> User<'a> {
    fn new(issuer: &'a Issuer) -> Self {
        let folder = TempDir::with_prefix("berth-token-").unwrap();
        fs::write(folder.path().join("ca.pem"), &issuer.ca_pem).unwrap();
        fs::write(folder.path().join("client-secret"), format!("{CLIENT_SECRET}\n")).unwrap();
        Self { issuer, folder }
    }

    fn arguments(&self, flow: &str, client: &str) -> Vec<String> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        vec![
            "token".into(),
            "oidc".into(),
            format!("--flow={flow}"),
            format!("--issuer={}", self.issuer.url),
            format!("--client-id={client}"),
            format!("--ca-file={}", file("ca.pem")),
            format!("--client-secret-file={}", file("client-secret")),
        ]
    }

    /// A program whose process has the id of the child. It opens no browser.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "umask 0 && exec \"$0\" \"$@\""])
            .arg(program)
            .env("XDG_CACHE_HOME", self.folder.path())
            .env("KUBECACHEDIR", self.folder.path().join("kube"))
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full")
            .env("PATH", binary("berth").parent().unwrap())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    fn start(&self, flow: &str, client: &str) -> Running {
        let mut command = self.command(&binary("berth"));
        command.args(self.arguments(flow, client));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running {
            lines: BufReader::new(child.stderr.take().unwrap()).lines(),
            child,
            messages: String::new(),
        }
    }

    /// Opens the page of a sign-in in a browser, and returns to the command with this code, or with the one that the issuer gives.
    async fn use_browser(&self, running: &mut Running, code: Option<&str>) {
        let page = running.line(&self.issuer.url).await;
        let back: http::Uri = self.issuer.authorize(&page).parse().unwrap();
        let mut path = back.path_and_query().unwrap().to_string();
        if let Some(code) = code {
            let given = path
                .split_once("code=")
                .unwrap()
                .1
                .split('&')
                .next()
                .unwrap()
                .to_owned();
            path = path.replace(&given, code);
        }
        let (host, port) = (back.host().unwrap(), back.port_u16().unwrap());
        let answer = berth_runtime::http::get(host, port, &path, SOON).await.unwrap();
        self.canaries().assert_not_in("the page for the browser", &answer.1);
    }

    /// All secrets so far.
    fn canaries(&self) -> Canaries {
        let mut canaries = Canaries::default();
        for secret in self.issuer.secrets() {
            canaries.add_whole(&secret);
        }
        canaries.add_whole(CLIENT_SECRET);
        let in_form: String = form_urlencoded::byte_serialize(CLIENT_SECRET.as_bytes()).collect();
        canaries.add_whole(&in_form);
        canaries.add_whole(FORGED_CODE);
        canaries
    }

    /// Below its cache there are files with secrets, which are its own.
    fn keeps_them_for_itself(&self) {
        let tokens = self.folder.path().join("berth/tokens");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&tokens), 0o700);
        let kept = texts_in(&tokens);
        assert!(kept.iter().any(|(_, text)| self.canaries().are_in(text)));
        for (path, _) in &kept {
            assert_eq!(mode(Path::new(path)), 0o600, "{path}");
        }
    }
}

pub(crate) async fn what_berth_token_handles_is_in_no_message_argument_or_readable_file(host: Arc<TestCluster>) {
    let issuer = Issuer::start().await;
    let user = User::new(&issuer);
    for flow in ["device", "browser"] {
        let user = User::new(&issuer);
        let mut running = user.start(flow, CLIENT);
        if flow == "browser" {
            user.use_browser(&mut running, None).await;
        } else {
            running.line("Open ").await;
            let canaries = user.canaries();
            assert!(canaries.len() > 2, "the issuer has given a code");
            canaries.assert_not_in_process(running.child.id().unwrap());
        }
        let (is_success, stdout, messages) = running.end().await;
        assert!(is_success && user.canaries().are_in(&stdout), "{messages}");
        user.canaries().assert_not_in("its messages", &messages);
        user.keeps_them_for_itself();
    }
    kubectl_logs_none(&host, &user).await;
    errors_name_none(&issuer).await;
    service_accounts_are_no_exception(&host).await;
}

/// kubectl writes every request with its headers. The host's API server refuses the token.
async fn kubectl_logs_none(host: &TestCluster, user: &User<'_>) {
    let mut print = user.command(&binary("berth"));
    let printed = print
        .args(user.arguments("device", CLIENT))
        .arg("--print-user")
        .output()
        .await
        .unwrap();
    user.canaries()
        .assert_not_in("the user of a kubeconfig", &String::from_utf8_lossy(&printed.stdout));
    let text = fs::read_to_string(host.home().admin_kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = serde_json::from_slice(&printed.stdout).unwrap();
    let file = user.folder.path().join("kubeconfig");
    fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut kubectl = user.command(&binaries::find_pinned(Binary::Kubectl).unwrap());
    kubectl.args(["-v=9", "auth", "whoami"]).env("KUBECONFIG", &file);
    let output = kubectl.output().await.unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        stderr.contains("curl -v") && stderr.contains("Unauthorized"),
        "{stderr}"
    );
    for (place, text) in [("what kubectl prints", &stdout), ("the log of kubectl", &stderr)] {
        user.canaries().assert_not_in(place, text);
    }
    user.keeps_them_for_itself();
}

/// The issuer repeats in errors what it was sent, and gives tokens that cannot be used.
async fn errors_name_none(issuer: &Issuer) {
    issuer.repeat_in_errors();
    issuer.set_lifetime(-5);
    for (flow, client, code, expected) in [
        ("device", CLIENT, None, "has expired"),
        ("browser", CLIENT, None, "has expired"),
        ("browser", CLIENT, Some(FORGED_CODE), "(invalid_grant)"),
        ("device", "other", None, "(invalid_client)"),
    ] {
        let user = User::new(issuer);
        let mut running = user.start(flow, client);
        if flow == "browser" {
            user.use_browser(&mut running, code).await;
        }
        let (is_success, stdout, messages) = running.end().await;
        assert!(
            !is_success && stdout.is_empty() && messages.contains(expected),
            "{messages}"
        );
        user.canaries().assert_not_in(expected, &messages);
    }
}

/// A token of a ServiceAccount is in the kubeconfig that is printed, and nowhere else.
async fn service_accounts_are_no_exception(host: &TestCluster) {
    let user = CommandLine::of_administrator(host);
    let mut canaries = Canaries::default();
    canaries.add(&fs::read_to_string(host.home().admin_kubeconfig()).unwrap());
    assert!(!canaries.is_empty());
    let account = ["token", "service-account", "default/default", "--ttl", "10m"];
    let (kubeconfig, messages) = user.run(&account, 0).await;
    canaries.assert_not_in("the kubeconfig", &kubeconfig);
    canaries.add(&kubeconfig);
    assert!(canaries.are_in(&kubeconfig));
    canaries.assert_not_in("its messages", &messages);
    let unknown = ["token", "service-account", "default/none", "--ttl", "10m"];
    let (_, messages) = user.run(&unknown, 1).await;
    canaries.assert_not_in("its errors", &messages);
    assert!(
        messages.contains("default/none") || messages.contains("not found"),
        "{messages}"
    );
}
