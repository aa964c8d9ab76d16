//! The charts and the programs that `make kubernetes` puts into Berth's cache, and helm.

use berth_local::images::Image;
use berth_tests::{
    files::documents,
    helm::{self, cache, existing},
    tenant::Tenant,
    test_cluster::TestCluster,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

/// An operator with a chart of its own.
pub struct Chart {
    /// Component in `hack/kubernetes/versions`, and name of the release.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The namespace it is installed into.
    pub namespace: &'static str,
    /// Its Deployment.
    pub deployment: &'static str,
    /// Path of the value with its image pull policy: there is no registry here.
    pub pull_policy: &'static [&'static str],
}

impl Chart {
    /// The program of the operator, which is called like the component.
    fn program(&self) -> PathBuf {
        existing(cache().join("bin").join(self.name).join(self.version).join(self.name))
    }

    /// The chart's folder.
    fn folder(&self) -> PathBuf {
        existing(cache().join("charts").join(self.name).join(self.version))
    }

    /// Values with which its image is taken from the node.
    fn without_registry(&self) -> Value {
        let path = self.pull_policy.iter().rev();
        path.fold("IfNotPresent".into(), |value: Value, key| json!({ *key: value }))
    }
}

/// helm, as a team uses it: with the tenant's kubeconfig and nothing else.
pub struct Helm {
    home: TempDir,
}

impl Helm {
    /// helm for one tenant.
    pub fn new(tenant: &Tenant) -> Self {
        let home = TempDir::new().unwrap();
        std::fs::write(home.path().join("kubeconfig"), &tenant.kubeconfig).unwrap();
        Self { home }
    }

    /// Installs a chart with the chart's own values and waits until all of it is ready.
    pub async fn install(&self, host: &TestCluster, chart: &Chart) {
        self.install_with(host, chart, |_| json!({})).await;
    }

    /// Installs a chart with some values of a team's own, which may be made from the chart's. The image that the chart names is
    /// made of the operator's program.
    pub async fn install_with(&self, host: &TestCluster, chart: &Chart, values: impl FnOnce(&Value) -> Value) {
        let folder = chart.folder();
        let own = std::fs::read_to_string(folder.join("values.yaml")).unwrap();
        let values = values(&serde_saphyr::from_str(&own).unwrap());
        let mut files = Vec::new();
        for (name, values) in [("values", values), ("registry", chart.without_registry())] {
            let file = self.home.path().join(name);
            std::fs::write(&file, values.to_string()).unwrap();
            files.push(format!("--values={}", file.display()));
        }
        let folder = folder.display().to_string();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let rendered = [&["template", chart.name, &folder], &files[..]].concat();
        let image = image(chart, &self.run(chart, &rendered).await);
        host.import_images(&[image], None).await.unwrap();
        let install = [
            &["install", chart.name, &folder],
            &files[..],
            &["--create-namespace", "--wait", "--timeout=400s"],
        ];
        self.run(chart, &install.concat()).await;
    }

    /// Removes it.
    pub async fn uninstall(&self, chart: &Chart) {
        self.run(chart, &["uninstall", chart.name, "--wait", "--timeout=300s"])
            .await;
    }

    async fn run(&self, chart: &Chart, args: &[&str]) -> String {
        let helm = helm::Helm { home: self.home.path() };
        let namespace = format!("--namespace={}", chart.namespace);
        let args = [args, &[namespace.as_str()]].concat();
        match helm.run(&args).await {
            Ok(said) => said,
            Err(error) => panic!("helm {args:?}: {error}"),
        }
    }
}

/// The image of an operator, as its Deployment names it.
fn image(chart: &Chart, rendered: &str) -> Image {
    let deployment = documents(rendered)
        .into_iter()
        .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == chart.deployment);
    let container = deployment.unwrap()["spec"]["template"]["spec"]["containers"][0].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let command = text(&container["command"][0]);
    let path = if command.is_empty() { "/manager" } else { &command };
    Image::new(text(&container["image"]), &chart.program(), path)
}
