//! `berth version`: the versions of this program, of what it starts, and of the host cluster.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::system;
use berth_process::binaries;
use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use serde::Serialize;

use crate::error::Error;
use crate::host::{HostArguments, answer_within};
use crate::output::{OutputFormat, join_lines, print, print_note};

/// How long the host may take for each of its answers: people ask for the version of a program that may not find one.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct VersionArguments {
    /// Print only the versions of this program and of the binaries that it starts. No host cluster is asked.
    #[arg(long)]
    client: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// What `berth version` prints. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    berth: &'static str,
    /// The version of local host clusters.
    kubernetes: &'static str,
    /// The versions whose binaries are on this machine.
    kubernetes_found: Vec<String>,
    etcd: &'static str,
    kwok: &'static str,
    /// None if the host cluster is not asked, or does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostVersions>,
}

/// The versions of a host cluster.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostVersions {
    kubernetes: String,
    #[serde(flatten)]
    installed: Installed,
}

/// The versions of an installation by the chart; none if they are not known.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Installed {
    #[serde(skip_serializing_if = "Option::is_none")]
    berth: Option<String>,
    /// Name and version of the chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<String>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &VersionArguments) -> Result<ExitCode, Error> {
    let host = if arguments.client { None } else { find_host(host).await? };
    let versions = Versions {
        berth: env!("CARGO_PKG_VERSION"),
        kubernetes: berth_kubernetes_versions::KUBERNETES_DEFAULT,
        kubernetes_found: binaries::available_versions(),
        etcd: berth_kubernetes_versions::ETCD,
        kwok: berth_kubernetes_versions::KWOK,
        host,
    };
    print(&versions, format_versions, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The versions of the host cluster; none if there is none that answers, which is no error: the program has a version all the same.
///
/// # Errors
/// `--context` names a context that does not exist.
async fn find_host(host: &HostArguments) -> Result<Option<HostVersions>, Error> {
    let is_context_given = host.context.is_some();
    match host.connect().await {
        Ok(host) => Ok(read_host(&host.client).await),
        Err(error @ Error::Usage(_)) if is_context_given => Err(error),
        Err(error) => {
            print_note(format_args!("{error}"));
            Ok(None)
        }
    }
}

async fn read_host(client: &Client) -> Option<HostVersions> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), system::NAMESPACE);
    let (kubernetes, control) = tokio::join!(
        answer_within(TIMEOUT, client.apiserver_version()),
        answer_within(TIMEOUT, deployments.get_opt(system::CONTROL))
    );
    let kubernetes = match kubernetes {
        Ok(version) => version.git_version,
        Err(error) => {
            print_note(format_args!(
                "the host cluster does not say its version: {error}; --client asks no host cluster"
            ));
            return None;
        }
    };
    let installed = read_installed(control).unwrap_or_else(|reason| {
        print_note(format_args!(
            "the version of Berth on the host cluster is not known: {reason}"
        ));
        Installed::default()
    });
    Some(HostVersions { kubernetes, installed })
}

/// What the labels of control's Deployment say, which the chart sets, or why they are not known.
fn read_installed(control: Result<Option<Deployment>, String>) -> Result<Installed, String> {
    let control = control?.ok_or_else(|| {
        let (namespace, name) = (system::NAMESPACE, system::CONTROL);
        format!("there is no Deployment {namespace}/{name}, which Berth's chart installs")
    })?;
    let label = |key: &str| control.labels().get(key).cloned();
    Ok(Installed {
        berth: label("app.kubernetes.io/version"),
        chart: label("helm.sh/chart"),
    })
}

fn format_versions(versions: &Versions) -> String {
    let Versions {
        berth,
        kubernetes,
        kubernetes_found,
        etcd,
        kwok,
        host,
    } = versions;
    let found = if kubernetes_found.is_empty() {
        "none; run `make kubernetes`".to_owned()
    } else {
        kubernetes_found.join(", ")
    };
    let mut lines = vec![
        format!("berth {berth}"),
        format!("kubernetes {kubernetes} (found: {found})"),
        format!("etcd {etcd}"),
        format!("kwok {kwok}"),
    ];
    if let Some(HostVersions { kubernetes, installed }) = host {
        lines.push(format!("host kubernetes {kubernetes}"));
        let Installed { berth, chart } = installed;
        lines.extend(berth.as_ref().map(|version| format!("host berth {version}")));
        lines.extend(chart.as_ref().map(|chart| format!("host chart {chart}")));
    }
    join_lines(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, refusal};
    use serde_json::{Value, json};

    /// A host whose API server answers so for its version, and so for Deployments.
    fn host_of(version: (u16, Value), control: (u16, Value)) -> Client {
        testing::client(move |request| match request.uri().path() {
            "/version" => version.clone(),
            _ => control.clone(),
        })
    }

    fn versions(host: Option<HostVersions>) -> Versions {
        Versions {
            berth: "0.1.0",
            kubernetes: "v1.37.1",
            kubernetes_found: Vec::new(),
            etcd: "v3",
            kwok: "v0",
            host,
        }
    }

    #[tokio::test]
    async fn a_host_has_the_versions_of_its_api_server_and_of_the_chart() {
        let control = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "berth-control", "namespace": "berth-system",
            "labels": {"app.kubernetes.io/version": "0.2.0", "helm.sh/chart": "berth-0.2.1"},
        }});
        let version = (200, json!({"gitVersion": "v1.36.4"}));
        let host = read_host(&host_of(version.clone(), (200, control))).await.unwrap();
        let host = versions(Some(host));
        assert_eq!(
            format_versions(&host),
            "berth 0.1.0\nkubernetes v1.37.1 (found: none; run `make kubernetes`)\netcd v3\nkwok v0\nhost kubernetes v1.36.4\nhost berth \
             0.2.0\nhost chart berth-0.2.1"
        );
        let value = serde_json::to_value(&host).unwrap();
        let expected = json!({"kubernetes": "v1.36.4", "berth": "0.2.0", "chart": "berth-0.2.1"});
        assert_eq!(value["host"], expected);

        // A team may not read it, and a local host cluster has none.
        for control in [refusal(403, "Forbidden"), refusal(404, "NotFound")] {
            let host = read_host(&host_of(version.clone(), control)).await.unwrap();
            let value = serde_json::to_value(&host).unwrap();
            assert_eq!(value, json!({"kubernetes": "v1.36.4"}));
        }
    }

    #[tokio::test]
    async fn the_program_has_a_version_without_a_host() {
        let host = host_of(refusal(503, "ServiceUnavailable"), refusal(503, "ServiceUnavailable"));
        let host = versions(read_host(&host).await);
        assert!(format_versions(&host).ends_with("\nkwok v0"), "{host:?}");
        assert_eq!(serde_json::to_value(&host).unwrap().get("host"), None);
    }

    /// The current context is gone, or that of a tenant from which no context of a host is known.
    #[tokio::test]
    async fn a_kubeconfig_without_a_host_is_no_error_but_a_wrong_flag_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let find = async |current: &str, context: Option<&str>| {
            let contexts = json!([{"name": "berth/team/vision", "context": {"cluster": "vision", "user": "vision"}}]);
            let kubeconfig = json!({"current-context": current, "contexts": contexts});
            std::fs::write(&path, kubeconfig.to_string()).unwrap();
            let arguments = HostArguments {
                kubeconfig: Some(path.clone()),
                context: context.map(ToOwned::to_owned),
                namespace: None,
                home: folder.path().to_owned(),
                request_timeout: TIMEOUT,
            };
            find_host(&arguments).await
        };
        for current in ["gone", "berth/team/vision"] {
            assert_eq!(find(current, None).await.unwrap(), None, "{current}");
            assert_eq!(find(current, Some("visoin")).await.unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn what_a_host_says_is_one_line() {
        let host = HostVersions {
            kubernetes: "v1.36.4\nhost berth 9".into(),
            installed: Installed::default(),
        };
        assert_eq!(format_versions(&versions(Some(host))).lines().count(), 5);
    }

    #[test]
    fn what_is_not_known_says_why() {
        let missing = read_installed(Ok(None)).unwrap_err();
        assert!(missing.contains("berth-system/berth-control"), "{missing}");
        assert_eq!(read_installed(Err("forbidden".into())), Err("forbidden".into()));
        assert_eq!(
            read_installed(Ok(Some(Deployment::default()))),
            Ok(Installed::default())
        );
    }
}
