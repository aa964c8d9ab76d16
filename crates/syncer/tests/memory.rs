#![allow(clippy::all, dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::json;
use setup::*;

fn rss(pid: u32) -> String {
    let t = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    t.lines()
        .filter(|l| {
            l.starts_with("Rss")
                || l.starts_with("Pss:")
                || l.starts_with("Anonymous")
                || l.starts_with("Private_Dirty")
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let c = Clusters::start().await;
    let extra: Vec<String> = (3..=10).map(|n| format!("gpu-h100-{n:02}")).collect();
    c.publish_nodes(&extra.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    let dir = std::path::PathBuf::from("/tmp/mem");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("host"), c.host.kubeconfig_for("berth:syncer", &[]).unwrap()).unwrap();
    std::fs::write(
        dir.join("tenant"),
        c.tenant.kubeconfig_for("berth:syncer", &[]).unwrap(),
    )
    .unwrap();
    let start = || {
        std::process::Command::new(std::env::var("SYNCER").unwrap())
            .args([
                "--host-kubeconfig",
                "/tmp/mem/host",
                "--tenant-kubeconfig",
                "/tmp/mem/tenant",
                "--tenant-id",
                SLUG,
                "--workload-namespace",
                WORKLOADS,
                "--control-plane-namespace",
                "berth-vision-aaaaaaaaaaaaa-cp",
                "--api-server-host",
                "10.96.0.49",
                "--admin-address",
                "127.0.0.1:18089",
            ])
            .spawn()
            .unwrap()
    };
    let mut child = start();
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    eprintln!("idle: {}", rss(child.id()));
    let pods = c.tenant_api::<Pod>();
    let n: usize = std::env::var("PODS").unwrap().parse().unwrap();
    let t = std::time::Instant::now();
    futures::stream::iter(0..n).for_each_concurrent(16, |i| { let pods = pods.clone(); async move {
        create(&pods, json!({"metadata": {"name": format!("train-worker-{i}"), "labels": {"app": "train", "pod-template-hash": "abcdef"}}, "spec": {"containers": [{"name": "main", "image": "registry.example.com/team/train:1", "command": ["python","train.py"], "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}, "env": [{"name": "A", "value": "B"}]}]}})).await;
    }}).await;
    eprintln!("created {n} in {:?}", t.elapsed());
    loop {
        let all = pods.list(&ListParams::default()).await.unwrap();
        let r = all.iter().filter(|p| phase(p) == "Running").count();
        if r == n || t.elapsed().as_secs() > 150 {
            eprintln!("running {r} after {:?}", t.elapsed());
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    eprintln!("after {n}: {}", rss(child.id()));
    let m = std::process::Command::new("curl")
        .args(["-s", "http://127.0.0.1:18089/metrics"])
        .output()
        .unwrap()
        .stdout;
    std::fs::write("/tmp/mem/metrics", m).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let t = std::time::Instant::now();
    let mut child = start();
    loop {
        let o = std::process::Command::new("curl")
            .args([
                "-s",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "http://127.0.0.1:18089/readyz",
            ])
            .output()
            .unwrap()
            .stdout;
        if o == b"200" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    eprintln!("ready after restart: {:?}", t.elapsed());
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    eprintln!("after restart: {}", rss(child.id()));
    let m = std::process::Command::new("curl")
        .args(["-s", "http://127.0.0.1:18089/metrics"])
        .output()
        .unwrap()
        .stdout;
    std::fs::write("/tmp/mem/metrics2", m).unwrap();
    let _ = std::process::Command::new("cp")
        .args(["-r", &format!("/proc/{}/smaps", child.id()), "/tmp/mem/smaps"])
        .status();
    child.kill().unwrap();
    child.wait().unwrap();
}
