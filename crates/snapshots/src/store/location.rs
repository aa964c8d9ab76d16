//! Where a snapshot is in its store.

use crate::error::StoreError;
use std::fmt::{Display, Formatter, Result as FormatResult};

/// Where a snapshot is in a store: names that are separated by `/`. It cannot lead out of the store, and no name begins with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location(String);

impl Location {
    /// # Errors
    /// [`StoreError::Denied`]: it is something else.
    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        if text.split('/').all(is_name) {
            Ok(Self(text.to_owned()))
        } else {
            Err(StoreError::Denied(format!(
                "{text:?} cannot be the location of a snapshot"
            )))
        }
    }

    /// The last of its names.
    pub(super) fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// The names before the last one.
    pub(super) fn folders(&self) -> impl Iterator<Item = &str> {
        let folders = self.0.rsplit_once('/').map(|(folders, _)| folders.split('/'));
        folders.into_iter().flatten()
    }
}

impl Display for Location {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        formatter.write_str(&self.0)
    }
}

/// Whether it can be a name in a location, or in the prefix of a bucket.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_of_name)
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.=".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_stay_inside_the_store() {
        for text in ["a", "5b2c/0f-1_x.snapshot", "a/b=c/d"] {
            let location = Location::parse(text).unwrap();
            assert_eq!(location.to_string(), text);
            let names: Vec<_> = location.folders().chain([location.name()]).collect();
            assert_eq!(names.join("/"), text);
        }
        for text in [
            "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", ".a", "a/.b", "a b", "a\\b", "a\nb",
            "a%2f", "a#1", "\u{e4}", "a\0",
        ] {
            assert!(matches!(Location::parse(text), Err(StoreError::Denied(_))), "{text:?}");
        }
    }
}
