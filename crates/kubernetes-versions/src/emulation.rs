//! Versions of Kubernetes that newer programs emulate: kube-apiserver and the others can behave like earlier minor versions
//! (`--emulated-version`).

use crate::KUBERNETES_DEFAULT;

/// A version without programs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// The version as a tenant requests it.
    pub version: &'static str,
    /// Version of the programs that emulate it.
    pub programs: &'static str,
    /// Value of `--emulated-version`.
    pub minor: &'static str,
}

/// Every version that is emulated. There is no patch release behind them, so the patch is 0.
pub const EMULATED: &[Emulation] = &[Emulation {
    version: "v1.35.0",
    programs: KUBERNETES_DEFAULT,
    minor: "1.35",
}];

/// The emulation of `version`; none if it has programs of its own.
pub fn emulation(version: &str) -> Option<Emulation> {
    EMULATED.iter().find(|emulation| emulation.version == version).copied()
}

/// The versions that programs of the versions `available` can run; newest first, like `available`.
pub fn offered(available: Vec<String>) -> Vec<String> {
    let emulated: Vec<String> = EMULATED
        .iter()
        .filter(|emulation| available.iter().any(|version| version == emulation.programs))
        .map(|emulation| emulation.version.to_owned())
        .collect();
    available.into_iter().chain(emulated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_version_is_offered_only_with_its_programs() {
        let both = vec![KUBERNETES_DEFAULT.to_owned(), "v1.36.4".to_owned()];
        assert_eq!(offered(both), [KUBERNETES_DEFAULT, "v1.36.4", "v1.35.0"]);
        assert_eq!(offered(vec!["v1.36.4".into()]), ["v1.36.4"]);
        assert_eq!(emulation("v1.35.0").map(|emulation| emulation.minor), Some("1.35"));
        assert_eq!(emulation("v1.36.4"), None);
    }
}
