//! The memory limit of a container, for the Go program in it. Go does not know the limit, and lets its heap grow until the kernel
//! ends the program. With `GOMEMLIMIT` it collects garbage more often as it comes near the limit.

use crate::control_plane::Program;
use berth_api::quantity;
use k8s_openapi::api::core::v1::ResourceRequirements;

/// The environment variable. It takes a number of bytes, and Go exits if it is not one or does not fit into 64 bits.
pub(super) const VARIABLE: &str = "GOMEMLIMIT";

/// Share of the limit that Go may use. The rest is for what it does not count: the program itself, its files, and what it takes
/// before it notices.
const PERCENT: i128 = 90;

/// The value for a program in a container with these resources. None if it is not a Go program, or has no memory limit.
pub(super) fn value(program: &Program, resources: &ResourceRequirements) -> Option<String> {
    match program {
        Program::Syncer => None,
        Program::Kubernetes { .. } | Program::CoreDns => {
            let limit = resources.limits.as_ref()?.get("memory")?;
            let bytes = quantity::parse(&limit.0)? / 1000 * PERCENT / 100;
            let bytes = i64::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
            Some(bytes.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use std::collections::BTreeMap;

    fn value_of(program: &Program, resource: &str, limit: &str) -> Option<String> {
        let resources = ResourceRequirements {
            limits: Some(BTreeMap::from([(resource.to_owned(), Quantity(limit.to_owned()))])),
            ..ResourceRequirements::default()
        };
        value(program, &resources)
    }

    #[test]
    fn go_collects_before_the_limit_is_reached() {
        let server = Program::Kubernetes {
            version: "v1.37.1".into(),
        };
        for (limit, expected) in [
            ("2Gi", "1932735283"),
            ("1G", "900000000"),
            ("1500000k", "1350000000"),
            ("1e9", "900000000"),
        ] {
            assert_eq!(value_of(&server, "memory", limit).as_deref(), Some(expected), "{limit}");
        }
        assert_eq!(
            value_of(&Program::CoreDns, "memory", "100M").as_deref(),
            Some("90000000")
        );
    }

    #[test]
    fn without_a_limit_that_go_accepts_there_is_none() {
        let server = Program::Kubernetes {
            version: "v1.37.1".into(),
        };
        for limit in ["", "much", "0", "-1Gi", "1m", "16Ei"] {
            assert_eq!(value_of(&server, "memory", limit), None, "{limit}");
        }
        assert_eq!(value_of(&server, "cpu", "2"), None);
        assert_eq!(value(&server, &ResourceRequirements::default()), None);
        // It is not a Go program.
        assert_eq!(value_of(&Program::Syncer, "memory", "2Gi"), None);
    }
}
