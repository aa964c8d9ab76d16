//! Checks of values that the CRD schemas can check only in part.

use std::{fmt, str::FromStr};

/// A Kubernetes version such as `v1.37.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesVersion {
    /// Major version: 1.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Patch version.
    pub patch: u16,
}

/// Why a text is not a Kubernetes version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Kubernetes version; write it as v<major>.<minor>.<patch>, for example v1.37.1")]
pub struct VersionError(String);

impl FromStr for KubernetesVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let fail = || VersionError(text.into());
        let numbers = text.strip_prefix('v').ok_or_else(fail)?;
        let mut parts = numbers.split('.').map(|part| match part {
            "0" => Ok(0),
            _ if part.starts_with(['0', '+']) => Err(fail()),
            _ => part.parse().map_err(|_| fail()),
        });
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(major), Some(minor), Some(patch), None) => Ok(Self {
                major: major?,
                minor: minor?,
                patch: patch?,
            }),
            _ => Err(fail()),
        }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_written() {
        let version: KubernetesVersion = "v1.37.1".parse().unwrap();
        assert_eq!((version.major, version.minor, version.patch), (1, 37, 1));
        assert_eq!(version.to_string(), "v1.37.1");
        assert!(version > "v1.36.4".parse().unwrap());
        assert!("v1.10.0".parse::<KubernetesVersion>().unwrap() > "v1.9.9".parse().unwrap());
    }

    #[test]
    fn malformed_versions_are_rejected() {
        for text in [
            "",
            "1.37.1",
            "v1.37",
            "v1.37.1.2",
            "v1.37.x",
            "v1.37.-1",
            "v1.037.1",
            "v1.37.99999",
            "v1.+3.1",
        ] {
            assert!(text.parse::<KubernetesVersion>().is_err(), "{text}");
        }
    }
}
