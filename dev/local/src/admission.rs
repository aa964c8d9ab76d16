//! The admission configuration of the host's API server.

use serde_json::json;

use crate::config::{HostClusterConfig, Purpose};

/// The file in the home, as JSON. The supervisor of processes keeps its records in files that end with `.json`.
pub(crate) const FILE: &str = "admission.yaml";
/// The flag with the path of the file.
pub(crate) const FLAG: &str = "admission-control-config-file";
/// Plugins that are not on by default.
const PLUGINS: &str = "NodeRestriction";
/// The same, with a limit of Events.
const PLUGINS_WITH_LIMIT: &str = "NodeRestriction,EventRateLimit";

/// Events of one namespace in a second, and at once before that counts, as the API servers of tenants take. Tenants decide on how many there are, and
/// no quota counts them.
const EVENTS: (u32, u32) = (50, 5000);

/// The content of the file.
pub(crate) fn configuration() -> String {
    let (qps, burst) = EVENTS;
    let events = json!({
        "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
        "kind": "Configuration",
        "limits": [{"type": "Namespace", "qps": qps, "burst": burst}],
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "EventRateLimit", "configuration": events}],
    });
    configuration.to_string()
}

/// Whether the API server reads the file: not in a cluster that is not prepared for Berth, and not if a test gives it another one. The plugin does not
/// start without its configuration.
pub(crate) fn limits_events(config: &HostClusterConfig) -> bool {
    let is_flag = |flag: &String| flag.trim_start_matches('-').starts_with(FLAG);
    config.purpose == Purpose::Berth && !config.apiserver_flags.iter().any(is_flag)
}

/// Value of the flag of plugins.
pub(crate) fn plugins(config: &HostClusterConfig) -> &'static str {
    if limits_events(config) {
        PLUGINS_WITH_LIMIT
    } else {
        PLUGINS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_limited_unless_a_test_has_a_configuration_of_its_own() {
        let config = HostClusterConfig::new("home");
        assert_eq!(plugins(&config), "NodeRestriction,EventRateLimit");
        let mut of_test = config.clone();
        of_test.apiserver_flags = vec![format!("--{FLAG}=other.json")];
        let mut of_others = config;
        of_others.purpose = Purpose::Anybody;
        for config in [of_test, of_others] {
            assert!(!limits_events(&config));
            assert_eq!(plugins(&config), "NodeRestriction");
        }
    }
}
