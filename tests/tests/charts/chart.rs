//! The charts and the binaries that `make kubernetes` puts into Berth's cache, and helm.

use berth_tests::{
    helm::{self, cache, existing},
    tenant::Tenant,
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
    /// File name of its program.
    pub binary: &'static str,
    /// The namespace it is installed into: the one its program falls back to outside a pod.
    pub namespace: &'static str,
    /// Its Deployment.
    pub deployment: &'static str,
    /// Arguments beside those of the Deployment.
    pub further_args: &'static [&'static str],
    /// A file that its program waits for, at a path that cannot be configured.
    pub waits_for: Option<&'static str>,
}

impl Chart {
    /// The program of the operator.
    pub fn program(&self) -> PathBuf {
        existing(cache().join("bin").join(self.name).join(self.version).join(self.binary))
    }

    /// The chart's folder.
    fn folder(&self) -> PathBuf {
        existing(cache().join("charts").join(self.name).join(self.version))
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
    pub async fn install(&self, chart: &Chart) {
        self.install_with(chart, |_| json!({})).await;
    }

    /// Installs a chart with some values of a team's own, which may be made from the chart's.
    pub async fn install_with(&self, chart: &Chart, values: impl FnOnce(&Value) -> Value) {
        let folder = chart.folder();
        let own = std::fs::read_to_string(folder.join("values.yaml")).unwrap();
        let values = values(&serde_saphyr::from_str(&own).unwrap());
        let file = self.home.path().join("values");
        std::fs::write(&file, values.to_string()).unwrap();
        let (folder, values) = (folder.display().to_string(), format!("--values={}", file.display()));
        let args = [
            "install",
            chart.name,
            &folder,
            &values,
            "--create-namespace",
            "--wait",
            "--timeout=90s",
        ];
        self.run(chart, &args).await;
    }

    /// Removes it.
    pub async fn uninstall(&self, chart: &Chart) {
        self.run(chart, &["uninstall", chart.name, "--wait", "--timeout=90s"])
            .await;
    }

    async fn run(&self, chart: &Chart, args: &[&str]) {
        let helm = helm::Helm { home: self.home.path() };
        let namespace = format!("--namespace={}", chart.namespace);
        let args = [args, &[namespace.as_str()]].concat();
        if let Err(error) = helm.run(&args).await {
            panic!("helm {args:?}: {error}");
        }
    }
}
