//! Versions of programs of the node.

/// A version of three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u32; 3]);

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(formatter, "{major}.{minor}.{patch}")
    }
}

impl Version {
    /// The version at the beginning of a text, as in `v1.17.8-rc.1`. A version before a release counts as the release.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().trim_start_matches('v').split(['.', '-', '+', '~']);
        let mut next = || numbers.next()?.parse().ok();
        Some(Self([next()?, next()?, next()?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_up_to_what_follows_them() {
        for (text, expected) in [
            ("1.17.8", Some([1, 17, 8])),
            (" v2.3.4\n", Some([2, 3, 4])),
            ("v2.1.5-k3s1", Some([2, 1, 5])),
            ("2.2.7~rc1", Some([2, 2, 7])),
            ("2.2.7+unknown", Some([2, 2, 7])),
            ("1.17", None),
            ("latest", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text).map(|version| version.0), expected, "{text}");
        }
        assert!(Version([2, 10, 0]) > Version([2, 9, 9]));
        assert_eq!(Version([1, 34, 14]).to_string(), "1.34.14");
    }
}
