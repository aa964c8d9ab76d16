//! The options of the cluster, kept between commands.

use std::fs;
use std::path::PathBuf;

use berth_local::{Home, NodePlan};
use berth_process::write_atomic;
use serde::{Deserialize, Serialize};

use super::UpArguments;
use crate::error::Error;
use crate::output::print_text;

/// The options of `up`, as the supervisor reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Options {
    pub(crate) nodes: NodePlan,
    /// Whether the nodes are real ones. Clusters of earlier versions have simulated ones.
    #[serde(default)]
    pub(crate) real_nodes: bool,
    pub(crate) kubernetes_version: String,
    pub(crate) control: bool,
    /// Whether tenants have names at a gateway. Clusters of earlier versions have none.
    #[serde(default)]
    pub(crate) gateway: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: NodePlan::default(),
            real_nodes: false,
            kubernetes_version: berth_kubernetes_versions::KUBERNETES_DEFAULT.into(),
            control: true,
            gateway: false,
        }
    }
}

impl Options {
    /// The options of a cluster that was started before; none when there is none.
    pub(crate) fn load(home: &Home) -> Result<Option<Self>, Error> {
        let path = path(home);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| Error::File {
                action: "parse",
                path,
                source: error.into(),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File {
                action: "read",
                path,
                source,
            }),
        }
    }

    pub(crate) fn save(&self, home: &Home) -> Result<(), Error> {
        let path = path(home);
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::File {
            action: "encode",
            path: path.clone(),
            source: error.into(),
        })?;
        Ok(write_atomic(&path, &text, 0o600)?)
    }

    /// The options after this `up`: those that the arguments give, else those before.
    pub(crate) fn after(before: Option<&Self>, arguments: &UpArguments) -> Result<Self, Error> {
        let UpArguments {
            nodes,
            kubernetes_version,
            without_control,
            gateway,
        } = arguments;
        let mut options = before.cloned().unwrap_or_default();
        let (real, plan) = nodes
            .as_ref()
            .map_or((None, None), |nodes| (nodes.real, nodes.plan.clone()));
        match before {
            Some(_) if real.is_some_and(|real| real != options.real_nodes) => {
                return Err(Error::OtherNodes {
                    real: options.real_nodes,
                });
            }
            Some(_) => {}
            None => {
                // Shapes without a type mean simulated nodes, of which a machine can have any number.
                options.real_nodes = real.unwrap_or_else(|| plan.is_none() && can_be_real());
                if options.real_nodes {
                    options.nodes = NodePlan::small();
                }
            }
        }
        if let Some(plan) = plan {
            options.nodes = plan;
        }
        if let Some(wanted) = kubernetes_version {
            if before.is_some() && wanted != &options.kubernetes_version {
                return Err(Error::OtherVersion {
                    is: options.kubernetes_version,
                    wanted: wanted.clone(),
                });
            }
            options.kubernetes_version.clone_from(wanted);
        }
        options.control = !without_control;
        options.gateway = gateway.unwrap_or(options.gateway);
        Ok(options)
    }

    /// Whether a gateway runs: without control there are no tenants to lead to.
    pub(crate) fn has_gateway(&self) -> bool {
        self.control && self.gateway
    }
}

/// Whether this machine can have real nodes; prints why if not.
fn can_be_real() -> bool {
    match berth_local::obstacle_to_real_nodes() {
        None => true,
        Some(why) => {
            print_text(format_args!("· nodes are simulated: {why}"));
            false
        }
    }
}

fn path(home: &Home) -> PathBuf {
    home.root().join("options.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> UpArguments {
        UpArguments {
            nodes: None,
            kubernetes_version: None,
            without_control: false,
            gateway: None,
        }
    }

    #[test]
    fn options_that_are_not_given_stay_as_they_were() {
        let before = Options {
            nodes: "h100=9".parse().unwrap(),
            ..Options::default()
        };
        assert_eq!(Options::after(Some(&before), &arguments()).unwrap(), before);
        let args = UpArguments {
            nodes: Some("simulated:cpu=1".parse().unwrap()),
            ..arguments()
        };
        assert_eq!(Options::after(Some(&before), &args).unwrap().nodes.to_string(), "cpu=1");
        let plain = UpArguments {
            nodes: Some("simulated".parse().unwrap()),
            ..arguments()
        };
        assert_eq!(Options::after(None, &plain).unwrap(), Options::default());
    }

    #[test]
    fn the_gateway_stays_until_it_is_ended() {
        let with = |gateway| UpArguments {
            nodes: Some("simulated".parse().unwrap()),
            gateway,
            ..arguments()
        };
        let after = |before: &Options, gateway| Options::after(Some(before), &with(gateway)).unwrap();
        let first = Options::after(None, &with(Some(true))).unwrap();
        assert!(first.has_gateway() && after(&first, None).has_gateway());
        assert!(!after(&first, Some(false)).has_gateway());
        assert!(!Options::after(None, &with(None)).unwrap().has_gateway());
        // It comes back with control.
        let without = UpArguments {
            without_control: true,
            ..with(None)
        };
        let paused = Options::after(Some(&first), &without).unwrap();
        assert!(!paused.has_gateway() && after(&paused, None).has_gateway());
        let earlier = serde_json::json!({"nodes": first.nodes, "kubernetesVersion": "v1.37.1", "control": true});
        let earlier: Options = serde_json::from_value(earlier).unwrap();
        assert!(!earlier.has_gateway());
    }

    #[test]
    fn the_type_of_nodes_cannot_change() {
        let with = |nodes: &str| UpArguments {
            nodes: Some(nodes.parse().unwrap()),
            ..arguments()
        };
        let real = Options::after(None, &with("real")).unwrap();
        assert!(real.real_nodes && real.nodes == NodePlan::small());
        assert!(!Options::after(None, &with("h100=4")).unwrap().real_nodes);
        assert_eq!(Options::after(Some(&real), &arguments()).unwrap(), real);
        let refused = Options::after(Some(&real), &with("simulated")).unwrap_err().to_string();
        assert!(refused.contains("berth dev down"), "{refused}");
    }

    #[test]
    fn the_version_of_a_cluster_cannot_change() {
        let args = UpArguments {
            nodes: Some("simulated".parse().unwrap()),
            kubernetes_version: Some("v1.36.4".into()),
            ..arguments()
        };
        assert_eq!(Options::after(None, &args).unwrap().kubernetes_version, "v1.36.4");
        let refused = Options::after(Some(&Options::default()), &args)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("berth dev down"), "{refused}");
    }
}
