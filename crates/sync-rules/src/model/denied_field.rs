//! Fields of a tenant object that are denied or have no effect.

use berth_api::text::{MAX_NOTE, event_note};
use std::fmt;

/// One field, and why it is denied or has no effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeniedField {
    /// Path of the field, for example `spec.containers[0].ports[1].hostPort`.
    pub field: String,
    /// Why, as a message for the tenant.
    pub why: String,
}

impl DeniedField {
    /// A denial of `field`.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
        }
    }
}

impl fmt::Display for DeniedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}

/// All denied fields of an object as one message, cut to what an Event can carry.
pub fn message(denials: &[DeniedField]) -> String {
    let mut text = String::new();
    for (index, denied) in denials.iter().enumerate() {
        let next = denied.to_string();
        let rest = format!("; and {} more", denials.len() - index);
        if text.len() + next.len() + rest.len() + 2 > MAX_NOTE && !text.is_empty() {
            text.push_str(&rest);
            break;
        }
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&next);
    }
    event_note(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_each_field_and_fit_an_event() {
        let two = [
            DeniedField::new("spec.hostPID", "not allowed"),
            DeniedField::new("spec.nodeName", "set by the scheduler"),
        ];
        assert_eq!(
            message(&two),
            "spec.hostPID: not allowed; spec.nodeName: set by the scheduler"
        );
        let many: Vec<_> = (0..100)
            .map(|i| DeniedField::new(format!("spec.field{i}"), "not allowed here at all"))
            .collect();
        let text = message(&many);
        assert!(text.len() <= MAX_NOTE && text.contains("more"), "{text}");
        let long = DeniedField::new("spec.ä", "é".repeat(MAX_NOTE));
        for denials in [vec![long.clone()], vec![long, two[0].clone()]] {
            assert_eq!(message(&denials).len(), MAX_NOTE - 1, "an é has two bytes");
        }
    }
}
