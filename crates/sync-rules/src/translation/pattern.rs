//! Texts that must match a regular expression. Translation and the host's admission policies use the same expression, so
//! that both accept the same texts. It must therefore mean the same to the `regex` crate and to RE2 (CEL), which leaves out
//! lookaround, flags and repetitions of more than 1000; and it has no single quotes, because CEL quotes it with them.

use regex::Regex;
use std::sync::OnceLock;

/// Longest text of a pattern that names no length.
const MAX_LENGTH: usize = 1000;
/// Characters of a text that a message shows.
const SHOWN: usize = 80;

/// What a text may look like.
#[derive(Debug)]
pub struct Pattern {
    /// The text matches this expression.
    pub expression: &'static str,
    /// The text matches none of these.
    pub excluded: &'static [&'static str],
    /// The most characters of the text.
    pub max_length: usize,
    /// What is allowed, in words for the tenant.
    pub allowed: &'static str,
    compiled: OnceLock<Option<(Regex, Vec<Regex>)>>,
}

impl Pattern {
    /// Texts that match `expression`.
    pub const fn new(expression: &'static str, allowed: &'static str) -> Self {
        Self::limited(expression, &[], MAX_LENGTH, allowed)
    }

    /// Texts of at most `max_length` characters that match `expression` and nothing of `excluded`.
    pub const fn limited(
        expression: &'static str,
        excluded: &'static [&'static str],
        max_length: usize,
        allowed: &'static str,
    ) -> Self {
        Self {
            expression,
            excluded,
            max_length,
            allowed,
            compiled: OnceLock::new(),
        }
    }

    fn compile(&self) -> Option<(Regex, Vec<Regex>)> {
        let excluded: Result<Vec<Regex>, regex::Error> = self.excluded.iter().map(|text| Regex::new(text)).collect();
        Some((Regex::new(self.expression).ok()?, excluded.ok()?))
    }

    /// Whether a text fits. None fits a pattern that cannot be compiled; tests check that all can.
    pub fn is_match(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| self.compile());
        text.len() <= self.max_length
            && compiled.as_ref().is_some_and(|(expression, excluded)| {
                expression.is_match(text) && !excluded.iter().any(|excluded| excluded.is_match(text))
            })
    }

    /// Why a text is denied, as a message for the tenant; `None` if it fits.
    pub fn denial(&self, text: &str) -> Option<String> {
        if self.is_match(text) {
            return None;
        }
        let shown: String = text.chars().take(SHOWN).collect();
        let rest = if shown.len() < text.len() { "…" } else { "" };
        Some(format!(
            "{shown:?}{rest} is not possible here; allowed: {}",
            self.allowed
        ))
    }
}

#[cfg(test)]
pub(crate) fn assert_usable(pattern: &Pattern) {
    assert!(pattern.compile().is_some(), "{}", pattern.expression);
    for expression in pattern.excluded.iter().chain([&pattern.expression]) {
        assert!(!expression.contains('\''), "{expression}: CEL quotes it with these");
    }
    assert!(
        !pattern.is_match("a\nb") && !pattern.is_match("a\n"),
        "{}",
        pattern.expression
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_text_and_what_is_allowed() {
        let pattern = Pattern::limited("^[a-z]*$", &["x"], 100, "letters but x");
        assert_eq!(pattern.denial("abc"), None);
        assert_eq!(
            pattern.denial("a\nb").unwrap(),
            r#""a\nb" is not possible here; allowed: letters but x"#
        );
        assert!(pattern.denial("x").is_some());
        let long = pattern.denial(&"a".repeat(101)).unwrap();
        assert!(long.contains("…") && long.len() < 150, "{long}");
    }

    #[test]
    fn a_pattern_that_cannot_be_compiled_fits_nothing() {
        assert!(!Pattern::new("(", "nothing").is_match("("));
        assert!(!Pattern::limited("a", &["("], 9, "nothing").is_match("a"));
    }
}
