//! Streams from the team's kubectl through its API server and the syncer to a container: logs, exec, attach, cp,
//! port-forward and debug; over WebSockets, as kubectl does today, and over SPDY, as older and other clients do.

use crate::{
    pods::{IMAGE, SOON, Space, only, pod, script, server, state, with},
    teams::{speech, vision},
};
use berth_api::is_pod_ready;
use berth_tests::{kubectl::Kubectl, test_cluster::TestCluster, wait::until};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::{process::Stdio, sync::Arc};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
};

/// kubectl with one of the two protocols.
const PROTOCOLS: [(&str, &str); 2] = [("WebSocket", "true"), ("SPDY", "false")];

fn speaking(mut command: Command, websockets: &str) -> Command {
    command
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
    command
}

/// Starts a command whose output is read line by line.
fn start(mut command: Command) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = tokio::time::timeout(SOON, lines.next_line())
        .await
        .expect("a line in time");
    line.unwrap().expect("a line before the end")
}

/// Runs a command with an input; code, output and errors.
async fn talk(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Both at once: output that is not read blocks the input.
    let write = async move {
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
    };
    let both = async { tokio::join!(write, child.wait_with_output()).1 };
    let output = tokio::time::timeout(SOON, both).await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

pub(crate) async fn logs_are_read_as_from_a_kubelet(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "streams-logs").await;
    let kubectl = space.kubectl();
    let logs = async |more: &[&str]| kubectl.output(&[&["logs", "-n", space.name], more].concat()).await;
    // Output and errors are two streams, of which the node may write down either first: the second waits for a file.
    let text = "for i in 1 2 3 4 5; do echo line $i; done; until [ -e /tmp/oops ]; do sleep 0.2; done; echo oops >&2
        until [ -e /tmp/end ]; do sleep 0.2; done; echo last";
    let container = json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", text]});
    space.create("talker", only(container)).await;
    space.ready("talker").await;

    let follow = kubectl.command(&["logs", "-n", space.name, "-f", "talker"]);
    let (mut child, mut lines) = start(follow);
    for number in 1..=5 {
        assert_eq!(next(&mut lines).await, format!("line {number}"));
    }
    space.exec("talker", &["touch", "/tmp/oops"]).await;
    assert_eq!(next(&mut lines).await, "oops");
    // A client that disconnects in between leaves nothing behind.
    let (mut other, mut others_lines) = start(kubectl.command(&["logs", "-n", space.name, "-f", "talker"]));
    next(&mut others_lines).await;
    other.kill().await.unwrap();
    assert_eq!(logs(&["talker", "--tail=2"]).await, "line 5\noops\n");
    assert_eq!(logs(&["talker", "--limit-bytes=6"]).await, "line 1");
    let stamped = logs(&["talker", "--timestamps", "--tail=1"]).await;
    let (time, word) = stamped.trim().split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && word == "oops", "{stamped}");
    assert_eq!(logs(&["talker", "--since-time=2100-01-01T00:00:00Z"]).await, "");
    space.exec("talker", &["touch", "/tmp/end"]).await;
    assert_eq!(next(&mut lines).await, "last");
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert!(child.wait().await.unwrap().success());

    let restarted = json!({"restartPolicy": "OnFailure", "containers": [{"name": "main", "image": IMAGE,
        "command": ["/bin/sh", "-c", "if [ -e /shared/second ]; then echo second life; sleep 3600; fi; touch /shared/second; echo first life; exit 1"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}], "volumes": [{"name": "shared", "emptyDir": {}}]});
    space.create("phoenix", restarted).await;
    space
        .until("phoenix", "runs again", |pod| {
            state(pod, "main").is_some_and(|state| state.running.is_some()) && is_pod_ready(pod) && restarts(pod) == 1
        })
        .await;
    assert_eq!(logs(&["-p", "phoenix"]).await, "first life\n");
    // It is ready when it runs, a moment before it says anything.
    until("its second run prints", SOON, async || {
        let said = kubectl.run(&["logs", "-n", space.name, "phoenix"]).await;
        if said.out == "second life\n" { Ok(()) } else { Err(said) }
    })
    .await;
    let said = kubectl.run(&["logs", "-n", space.name, "-p", "talker"]).await;
    assert!(
        !said.success
            && said
                .err
                .contains("previous terminated container \"main\" in pod \"talker\" not found"),
        "{said:?}"
    );
    assert_no_host_details(&space, &said.err);
}

fn restarts(pod: &k8s_openapi::api::core::v1::Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses
        .and_then(|statuses| statuses.first())
        .map_or(0, |status| status.restart_count)
}

/// Messages to the team contain no name or address of the host.
fn assert_no_host_details(space: &Space, message: &str) {
    for secret in [space.tenant.id.slug(), space.tenant.id.hash(), "https://"] {
        assert!(!message.contains(secret), "{secret}: {message}");
    }
}

/// Commands by both protocols, with the kubectl given.
async fn commands(space: &Space, kubectl: &Kubectl, pod: &str) {
    for (protocol, websockets) in PROTOCOLS {
        let exec = |options: &[&str], command: &[&str]| {
            let arguments = [
                &["exec", "-n", space.name],
                options,
                &[pod, "-c", "main", "--"],
                command,
            ]
            .concat();
            speaking(kubectl.command(&arguments), websockets)
        };
        let both = exec(&[], &["sh", "-c", "echo out; echo err >&2; exit 3"]);
        let (code, out, err) = talk(both, "").await;
        assert_eq!((code, &*out), (Some(3), "out\n"), "{protocol}: {err}");
        assert!(
            err.starts_with("err\n") && err.contains("exit code 3"),
            "{protocol}: {err}"
        );
        // More than any buffer on the way holds; the end of the input gets through.
        let input = "0123456789abcdef".repeat(64 << 10);
        let (code, out, err) = talk(exec(&["-i"], &["cat"]), &input).await;
        assert_eq!(
            (code, out == input),
            (Some(0), true),
            "{protocol}: {} of {}: {err}",
            out.len(),
            input.len()
        );
        let (code, _, err) = talk(exec(&[], &["no-such-program"]), "").await;
        assert!(code != Some(0) && err.contains("no-such-program"), "{protocol}: {err}");
        assert_no_host_details(space, &err);

        // kubectl asks for a terminal only if it has one itself.
        let inner = exec(&["-it"], &["sh", "-c", "tty; stty size 2>/dev/null; exit 4"]);
        let line: Vec<String> = [inner.as_std().get_program()]
            .into_iter()
            .chain(inner.as_std().get_args())
            .map(|part| format!("'{}'", part.to_str().unwrap()))
            .collect();
        let mut terminal = Command::new("script");
        terminal.args(["-q", "-e", "-c", &line.join(" "), "/dev/null"]);
        let (code, out, err) = talk(speaking(terminal, websockets), "").await;
        assert_eq!(code, Some(4), "{protocol}: {out}{err}");
        assert!(!out.contains("not a tty"), "{protocol}: {out}");
    }
}

pub(crate) async fn commands_run_in_containers(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "streams-exec").await;
    let kubectl = space.kubectl();
    space.create("box", only(server())).await;
    space.ready("box").await;
    commands(&space, &kubectl, "box").await;

    let file = kubectl.folder().join("file");
    std::fs::write(&file, "something to carry").unwrap();
    let there = format!("{}/box:/tmp/file", space.name);
    kubectl.output(&["cp", file.to_str().unwrap(), &there]).await;
    let back = kubectl.folder().join("back");
    kubectl.output(&["cp", &there, back.to_str().unwrap()]).await;
    assert_eq!(std::fs::read_to_string(back).unwrap(), "something to carry");

    let reader = with(script("true"), json!({"command": ["cat"], "stdin": true}));
    for (protocol, websockets) in PROTOCOLS {
        let name = protocol.to_lowercase();
        space
            .create(&name, only(with(reader.clone(), json!({"stdinOnce": true}))))
            .await;
        space.ready(&name).await;
        let attach = speaking(
            kubectl.command(&["attach", "-q", "-i", "-n", space.name, &name]),
            websockets,
        );
        let (_, out, err) = talk(attach, "hello\n").await;
        assert!(out.contains("hello"), "{protocol}: {out}{err}");
    }

    // A container that joins a running pod; its name is the tenant's and is found there. What kubectl would make without a
    // profile has a capability that no pod of a tenant may have.
    let join = [
        "debug",
        "-q",
        "--profile=baseline",
        "-n",
        space.name,
        "box",
        "-c",
        "helper",
        &format!("--image={IMAGE}"),
        "--",
        "sh",
        "-c",
        "echo joined; sleep 3600",
    ];
    kubectl.output(&join).await;
    space
        .until("box", "has a helper", |pod| {
            state(pod, "helper").is_some_and(|state| state.running.is_some())
        })
        .await;
    until("the helper prints", SOON, async || {
        let said = kubectl.run(&["logs", "-n", space.name, "box", "-c", "helper"]).await;
        if said.out == "joined\n" { Ok(()) } else { Err(said) }
    })
    .await;
    let said = kubectl
        .output(&[
            "exec", "-n", space.name, "box", "-c", "helper", "--", "echo", "in", "it",
        ])
        .await;
    assert_eq!(said, "in it\n");
    for what in ["exec", "logs"] {
        let said = kubectl
            .run(&[what, "-n", space.name, "box", "-c", "nobody", "--", "true"][..if what == "exec" { 8 } else { 6 }])
            .await;
        assert!(!said.success && said.err.contains("nobody"), "{said:?}");
        assert_no_host_details(&space, &said.err);
    }
}

/// One HTTP answer.
async fn fetch(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Its protocols between API server and kubelet are not those of the newest version, and need a test of their own.
pub(crate) async fn an_older_api_server_streams_as_well(host: Arc<TestCluster>) {
    let space = Space::new(speech(&host).await, "streams-older").await;
    let kubectl = space.kubectl();
    space.create("web", only(server())).await;
    space.ready("web").await;
    for (protocol, websockets) in PROTOCOLS {
        let exec = kubectl.command(&["exec", "-i", "-n", space.name, "web", "--", "cat"]);
        let said = talk(speaking(exec, websockets), "to and fro").await;
        assert_eq!((said.0, &*said.1), (Some(0), "to and fro"), "{protocol}: {}", said.2);
        let forward = kubectl.command(&["port-forward", "-n", space.name, "pod/web", ":8080"]);
        let (mut child, mut lines) = start(speaking(forward, websockets));
        let line = next(&mut lines).await;
        let address = line.split(' ').nth(2).unwrap_or_default();
        let port: u16 = address.rsplit(':').next().unwrap_or_default().parse().expect(&line);
        assert!(fetch(port, "/hostname").await.unwrap().ends_with("web"), "{protocol}");
        child.kill().await.unwrap();
    }
    let logs = kubectl.output(&["logs", "-n", space.name, "web"]).await;
    assert!(logs.contains("8080"), "{logs}");
}

pub(crate) async fn ports_are_forwarded(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "streams-forward").await;
    let kubectl = space.kubectl();
    let web = with(
        pod("web", only(server())),
        json!({"metadata": {"name": "web", "labels": {"app": "web"}}}),
    );
    space.apply(web).await;
    space
        .apply(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
        )
        .await;
    space.ready("web").await;
    for (protocol, websockets) in PROTOCOLS {
        for (what, ports) in [("pod/web", ":8080"), ("service/web", ":80")] {
            let forward = kubectl.command(&["port-forward", "-n", space.name, what, ports]);
            let (mut child, mut lines) = start(speaking(forward, websockets));
            let line = next(&mut lines).await;
            let address = line.split(' ').nth(2).unwrap_or_default();
            let port: u16 = address.rsplit(':').next().unwrap_or_default().parse().expect(&line);
            // Several connections through one stream, one after the other and at once.
            for _ in 0..3 {
                let (one, other) = tokio::join!(fetch(port, "/hostname"), fetch(port, "/hostname"));
                assert!(
                    one.unwrap().ends_with("web") && other.unwrap().ends_with("web"),
                    "{protocol} {what}"
                );
            }
            child.kill().await.unwrap();
        }
    }
    let (mut child, mut lines) = start(kubectl.command(&["port-forward", "-n", space.name, "pod/web", ":9999"]));
    let line = next(&mut lines).await;
    let port: u16 = line
        .split(' ')
        .nth(2)
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        fetch(port, "/").await.unwrap_or_default().is_empty(),
        "no process listens there"
    );
    child.kill().await.unwrap();
}

pub(crate) async fn an_edited_node_leads_nowhere_else(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "streams-nodes").await;
    let kubectl = space.kubectl();
    space.create("box", only(server())).await;
    let running = space.ready("box").await;
    let node = running.spec.unwrap().node_name.unwrap();
    let raw = async |path: &str| kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{path}")]).await;
    for (path, message) in [
        ("/proxy/pods", "the pod list of a node is reserved for the platform"),
        ("/proxy/stats/summary", "metrics of nodes are reserved for the platform"),
        (
            "/proxy/metrics/cadvisor",
            "metrics of nodes are reserved for the platform",
        ),
        ("/proxy/configz", "the node belongs to the platform"),
        ("/proxy/run/streams-nodes/box/main?cmd=id", "commands are run with exec"),
        (":2379/proxy/", "ports of nodes cannot be reached"),
        (":22/proxy/", "ports of nodes cannot be reached"),
    ] {
        let said = raw(&format!("{node}{path}")).await;
        assert!(!said.success && said.err.contains(message), "{path}: {said:?}");
        assert_no_host_details(&space, &said.err.replace("https://127.0.0.1", ""));
    }
    // Its address and port are corrected; until then connections fail.
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(space.client.clone());
    let before = nodes.get(&node).await.unwrap().status.unwrap();
    for (address, port) in [("169.254.169.254", 80), ("127.0.0.1", 6443), ("10.96.0.1", 443)] {
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        let endpoints = json!({"kubeletEndpoint": {"Port": port}});
        let patch = json!({"status": {"addresses": addresses, "daemonEndpoints": endpoints}});
        nodes
            .patch_status(&node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        let said = raw(&format!("{node}/proxy/")).await;
        // A request that hangs was sent somewhere.
        assert!(said.ended && !said.success, "{said:?}");
        until("the node is as it was", SOON, async || {
            let now = nodes.get(&node).await.unwrap().status.unwrap();
            let same = now.addresses == before.addresses && now.daemon_endpoints == before.daemon_endpoints;
            if same { Ok(()) } else { Err(now.addresses) }
        })
        .await;
    }
    assert_eq!(space.exec("box", &["echo", "still", "here"]).await, "still here\n");
}
